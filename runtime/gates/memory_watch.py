"""Notices other tensors that share memory with a parameter, such as ``p.data``, a view or a ``state_dict()``.

They can be read and written without the parameter, so no guard sees it. How many tensors share a storage is
counted by torch; more than the parameters that are guarded, and what the runtime has, belong to the training
loop or are buffers or frozen parameters of the model.
"""

from collections.abc import Iterable, Sequence

import torch

from pace.runtime.engine.buffers import Slot, num_uses
from pace.runtime.engine.local_parts import local_part
from pace.runtime.gates.guarded_tensors import without_guards


class MemoryWatch:
    """Counts who shares the memory of a model's parameters.

    Parameters
    ----------
    slots
        Of the parameters to watch.
    own
        Whether the runtime or a carrier of the model keeps other tensors of the same memory. Then whatever
        shares it now is taken for theirs.
    """

    def __init__(self, slots: Sequence[Slot], *, own: bool = False) -> None:
        self._slots = slots
        self._own = own
        self._watched: list[tuple[Slot, int, torch.UntypedStorage, int, int]] = []
        self._count()

    def _count(self) -> None:
        with without_guards():
            # Of tensors of the model only those that are guarded: others can be used without being asked for.
            known: dict[int, int] = {}
            for slot in self._slots:
                key = local_part(slot.parameter).untyped_storage()._cdata
                known[key] = known.get(key, 0) + 1
            overlapping = _overlapping(self._slots)
            self._watched = []
            for slot in self._slots:
                part = local_part(slot.parameter)
                storage = part.untyped_storage()
                # One more for `storage`, which keeps the address valid.
                expected = known[storage._cdata] + 1
                if self._own:
                    expected = max(expected, num_uses(storage._cdata))
                if slot in overlapping or _in_shared_memory(storage):
                    expected = -1
                self._watched.append((slot, part.data_ptr(), storage, storage._cdata, expected))

    def shared(self) -> list[Slot]:
        """Return the slots of parameters whose memory the training loop, or another process, has too."""
        with without_guards():
            for slot, address, _, _, _ in self._watched:
                if local_part(slot.parameter).data_ptr() != address:
                    self._count()  # the loop has moved parameters
                    break
            return [slot for slot, _, _, key, expected in self._watched if num_uses(key) > expected]


def _in_shared_memory(storage: torch.UntypedStorage) -> bool:
    return storage.device.type == "cpu" and storage.is_shared()


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
