"""Notices other tensors that share memory with a parameter, such as ``p.data``, a view or a ``state_dict()``.

They can be read and written without the parameter, so no guard notices it. Torch counts the tensors that
share a storage. Those beyond the guarded parameters and the runtime's own tensors belong to the training
loop, or are buffers or frozen parameters of the model. This rank's part of a sharded parameter can also be
kept as it is, so the references to it count, too.
"""

import ctypes
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch

from pace.runtime.engine.buffers import Slot, local_part, num_uses
from pace.runtime.gates.guarded_tensors import without_guards


class MemoryWatch:
    """Counts the tensors that share the memory of a model's parameters.

    Parameters
    ----------
    slots
        The slots of the parameters to watch.
    own
        Returns the tensors of a wrapper around the model that share the memory.
    moved
        Whether the runtime keeps other tensors of the same memory. Tensors that share it when the watch
        begins are then counted as its own.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        *,
        own: Callable[[], Iterable[torch.Tensor]] = tuple,
        moved: bool = False,
    ) -> None:
        self._slots = slots
        self._parameters = [slot.parameter for slot in slots]
        self._own = own
        self._moved = moved
        self._count()

    def _local_parts(self) -> list[torch.Tensor]:
        return [local_part(parameter) for parameter in self._parameters]

    def _count(self) -> None:
        with without_guards():
            parts = self._local_parts()
            # Look up the parts of sharded parameters each time, as torch may replace them.
            self._parts = parts if all(map(operator.is_, parts, self._parameters)) else None
            self._addresses = [part.data_ptr() for part in parts]
            # Kept, so that their addresses stay theirs; torch counts these as well.
            self._storages = {part.untyped_storage() for part in parts}
            self._keys = [part.untyped_storage()._cdata for part in parts]
            # Count only guarded tensors of the model, as others can be used unnoticed.
            known = Counter(self._keys) + Counter(storage._cdata for storage in self._storages)
            known += Counter(each.untyped_storage()._cdata for each in self._own())
            if self._moved:
                known = Counter({key: max(count, num_uses(key)) for key, count in known.items()})
            self._expected = [known[key] for key in self._keys]
            overlapping = _overlapping(self._slots)
            self._always = [
                slot
                for slot, part in zip(self._slots, parts, strict=True)
                if slot in overlapping or _in_shared_memory(part.untyped_storage())
            ]

    def shared(self) -> list[Slot]:
        """Return the slots of parameters whose memory the training loop or another process shares."""
        kept = [0] * len(self._slots)
        with without_guards():
            parts = self._parts or self._local_parts()
            if [part.data_ptr() for part in parts] != self._addresses:
                self._count()  # the loop has moved parameters
            if self._parts is None:
                kept = [sys.getrefcount(part) - _OWN_REFERENCES for part in parts]
        uses = [num_uses(key) + more for key, more in zip(self._keys, kept, strict=True)]
        if uses == self._expected:
            return self._always
        more = zip(self._slots, uses, self._expected, strict=True)
        return [*self._always, *(slot for slot, used, expected in more if used > expected)]


# What sys.getrefcount returns for a part of a parameter that a list and a variable refer to, too.
_OWN_REFERENCES = 4


def _in_shared_memory(storage: torch.UntypedStorage) -> bool:
    return storage.device.type == "cpu" and (storage.is_shared() or _is_foreign(storage))


def _is_foreign(storage: torch.UntypedStorage) -> bool:
    """Whether torch did not allocate some memory, so that a NumPy array or another buffer has it too."""
    return storage.nbytes() > 0 and _num_addresses(storage) < _OWN_ADDRESSES


def _num_addresses(storage: torch.UntypedStorage) -> int:
    # Torch does not tell who owns memory. A storage begins with the addresses of the memory and of its owner,
    # which are the same if torch allocated it. It is longer than 8 words.
    words = (ctypes.c_size_t * 8).from_address(storage._cdata)
    return list(words).count(storage.data_ptr())


_OWN_ADDRESSES = _num_addresses(torch.ones(1, device="cpu").untyped_storage())


def _overlapping(slots: Iterable[Slot]) -> set[Slot]:
    """Return the slots of parameters that have elements in common with other parameters."""
    found: set[Slot] = set()
    before: Slot | None = None
    end = 0
    for begin, stop, slot in sorted(
        ((*extent(local_part(slot.parameter)), slot) for slot in slots), key=lambda each: each[:2]
    ):
        if before is not None and begin < end:
            found |= {before, slot}
        if stop > end:
            before, end = slot, stop
    return found


def extent(part: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte, and after its last."""
    begin = part.data_ptr()
    if not part.numel():
        return begin, begin
    last = sum((size - 1) * stride for size, stride in zip(part.shape, part.stride(), strict=True))
    return begin, begin + (last + 1) * part.element_size()
