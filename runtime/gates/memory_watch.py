"""Notices other tensors that share memory with a parameter, such as ``p.data``, a view or a ``state_dict()``.

They can be read and written without the parameter, so no guard notices it. Torch counts the tensors that
share a storage. Those beyond the guarded parameters and the runtime's own tensors belong to the training
loop, or are buffers or frozen parameters of the model.
"""

import ctypes
import operator
from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from pace.runtime.engine.buffers import Slot, num_uses
from pace.runtime.engine.local_parts import local_part
from pace.runtime.gates.guarded_tensors import without_guards


class MemoryWatch:
    """Counts the tensors that share the memory of a model's parameters.

    Parameters
    ----------
    slots
        The slots of the parameters to watch.
    own
        Whether the runtime, or a wrapper around the model, keeps other tensors of the same memory. Tensors
        that share it when the watch begins are then counted as theirs.
    """

    def __init__(self, slots: Sequence[Slot], *, own: bool = False) -> None:
        self._slots = slots
        self._parameters = [slot.parameter for slot in slots]
        self._own = own
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
            if self._own:
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
        with without_guards():
            if [part.data_ptr() for part in self._parts or self._local_parts()] != self._addresses:
                self._count()  # the loop has moved parameters
        uses = [num_uses(key) for key in self._keys]
        if uses == self._expected:
            return self._always
        more = zip(self._slots, uses, self._expected, strict=True)
        return [*self._always, *(slot for slot, used, expected in more if used > expected)]


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
    for begin, stop, slot in sorted(((*_extent(slot), slot) for slot in slots), key=lambda each: each[:2]):
        if before is not None and begin < end:
            found |= {before, slot}
        if stop > end:
            before, end = slot, stop
    return found


def _extent(slot: Slot) -> tuple[int, int]:
    part = local_part(slot.parameter)
    begin = part.data_ptr()
    if not part.numel():
        return begin, begin
    last = sum((size - 1) * stride for size, stride in zip(part.shape, part.stride(), strict=True))
    return begin, begin + (last + 1) * part.element_size()
