"""Notices other tensors that share memory with a parameter, such as ``p.data``, a view or a ``state_dict()``.

They can be read and written without the parameter, so no guard sees it. How many tensors share a storage is
counted by torch; more than those that the model and the runtime have belong to the training loop.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from pace.runtime.engine.buffers import Slot
from pace.runtime.engine.local_parts import local_part
from pace.runtime.gates.guarded_tensors import without_guards

_num_uses: Any = torch._C._storage_Use_Count  # untyped in torch


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

    def __init__(self, model: nn.Module, slots: Sequence[Slot], *, own: bool = False) -> None:
        self._model = model
        self._slots = slots
        self._own = own
        self._watched: list[tuple[Slot, int, torch.UntypedStorage, int, int]] = []
        self._count()

    def _count(self) -> None:
        with without_guards():
            known: dict[int, int] = {}
            for tensor in _tensors_of(self._model):
                if tensor.layout is torch.strided:
                    key = tensor.untyped_storage()._cdata
                    known[key] = known.get(key, 0) + 1
            self._watched = []
            for slot in self._slots:
                part = local_part(slot.parameter)
                storage = part.untyped_storage()
                # One more for `storage`, which keeps the address valid.
                expected = known.get(storage._cdata, 1) + 1
                if self._own:
                    expected = max(expected, _num_uses(storage._cdata))
                if _in_shared_memory(storage):
                    expected = -1
                self._watched.append((slot, part.data_ptr(), storage, storage._cdata, expected))

    def shared(self) -> list[Slot]:
        """Return the slots of parameters whose memory the training loop, or another process, has too."""
        with without_guards():
            for slot, address, _, _, _ in self._watched:
                if local_part(slot.parameter).data_ptr() != address:
                    self._count()  # the loop has moved parameters
                    break
            return [slot for slot, _, _, key, expected in self._watched if _num_uses(key) > expected]


def _in_shared_memory(storage: torch.UntypedStorage) -> bool:
    return storage.device.type == "cpu" and storage.is_shared()


def _tensors_of(model: nn.Module) -> Iterable[torch.Tensor]:
    found = {id(each): each for each in (*model.parameters(), *model.buffers())}
    return [local_part(each) for each in found.values()]
