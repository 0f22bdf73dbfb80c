"""The memory of gradients and parameters that are summed and updated by shards.

A shard is a matrix with one row for each rank. Its gradients, or parameters, are stored one after another.
Each rank owns one row of every shard. The part of a gradient that is in this row is the rank's *piece* of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from pace.errors import InvalidUse
from pace.runtime.engine.buffers import FusedGroup, Slot, closing_group, dense, like, shared_elsewhere
from pace.runtime.engine.plan import PlannedGroup, PlannedShard, SendPlan
from pace.runtime.engine.sends import SegmentMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlace:
    """The place of a gradient in its shard, and its elements in this rank's row.

    Attributes
    ----------
    shard
        Number of the shard.
    offset, size
        The gradient's first element in the matrix, and its number of elements.
    start, end
        The range of its elements that is in the row, in memory order; equal if there are none.
    """

    shard: int
    offset: int
    size: int
    start: int
    end: int


def places_of(plan: SendPlan, parameters: Mapping[str, nn.Parameter], rank: int) -> dict[str, ShardPlace]:
    """Return the place of each gradient, by name."""
    places = {}
    for number, shard in enumerate(plan.shards):
        first, last = rank * shard.num_columns, (rank + 1) * shard.num_columns
        offset = 0
        for name in shard.gradients:
            size = parameters[name].numel()
            start, end = max(first - offset, 0), min(last - offset, size)
            places[name] = ShardPlace(
                shard=number, offset=offset, size=size, start=min(start, size), end=max(end, min(start, size))
            )
            offset += size
    return places


class ShardedGroup(FusedGroup):
    """The gradients of a reduce-scatter: the matrices of its shards, one after another.

    Attributes
    ----------
    parts
        The matrices.
    pieces
        This rank's part of each gradient that has one.
    """

    __slots__ = ("_places", "_shards", "_size", "parts", "pieces")

    parts: tuple[torch.Tensor, ...]
    pieces: dict[Slot, torch.Tensor]

    def __init__(
        self,
        number: int,
        planned: PlannedGroup,
        shards: Sequence[PlannedShard],
        parameters: Mapping[str, nn.Parameter],
        places: Mapping[str, ShardPlace],
        *,
        size: int,
        closing: bool,
    ) -> None:
        self._shards = [shards[each] for each in planned.shards]
        self._places = places
        self._size = size
        # Its marks and codes are sent separately.
        super().__init__(number, planned, parameters, num_codes=int(closing))

    def allocate(self) -> None:
        """Give the group a new, zeroed buffer."""
        first = self.slots[0].parameter
        sizes = [self._size * shard.num_columns for shard in self._shards]
        self.buffer = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        self.gradients = self.buffer
        self.marks = self.codes = self.buffer[:0]
        flats: tuple[torch.Tensor, ...] = torch.split(self.buffer, sizes)
        self.parts = tuple(flat.view(self._size, -1) for flat in flats)
        self.pieces = {}
        slots = iter(self.slots)
        for shard, flat in zip(self._shards, flats, strict=True):
            for slot in (next(slots) for _ in shard.gradients):
                place = self._places[slot.name]
                own = flat[place.offset : place.offset + place.size]
                slot.view = like(own, slot.parameter).data
                slot.show()
                if place.end > place.start:
                    self.pieces[slot] = own[place.start : place.end]


class ParameterMemory:
    """The matrices that hold the parameters while updates are sharded.

    Parameters
    ----------
    slots
        The slots of all parameters.

    Attributes
    ----------
    matrices
        The matrix of each shard.
    pieces
        This rank's piece of each parameter that has one.
    """

    def __init__(
        self, plan: SendPlan, slots: Sequence[Slot], places: Mapping[str, ShardPlace], size: int
    ) -> None:
        self.places = places
        self.pieces: dict[Slot, torch.Tensor] = {}
        self.matrices: list[torch.Tensor] = []
        self._views: dict[Slot, torch.Tensor] = {}
        by_name = {slot.name: slot for slot in slots}
        with torch.no_grad():
            for shard in plan.shards:
                first = by_name[shard.gradients[0]].parameter
                flat = torch.zeros(size * shard.num_columns, dtype=first.dtype, device=first.device)
                self.matrices.append(flat.view(size, -1))
                for slot in (by_name[name] for name in shard.gradients):
                    place = places[slot.name]
                    own = flat[place.offset : place.offset + place.size]
                    self._views[slot] = like(own, slot.parameter)
                    if place.end > place.start:
                        self.pieces[slot] = own[place.start : place.end]
        self.adopt()

    def adopt(self) -> None:
        """Move parameters into the matrices: all at the start, later those that user code has moved away."""
        with torch.no_grad():
            for slot, view in self._views.items():
                parameter = slot.parameter
                if parameter.data_ptr() != view.data_ptr() or parameter.stride() != view.stride():
                    if shared_elsewhere(parameter):
                        raise InvalidUse(f"updates are sharded, and {_shared(slot.name)}")
                    view.copy_(parameter)
                    parameter.data = view

    def announce(self) -> None:
        """Tell autograd that all parameters change, so that earlier graphs are stale."""
        for slot in self._views:
            torch.autograd.graph.increment_version(slot.parameter)

    def leave(self, shared: Sequence[Slot]) -> None:
        """Give every parameter its own memory again, except `shared`, to whose memory user code refers."""
        with torch.no_grad():
            for slot, view in self._views.items():
                if slot.parameter.data_ptr() == view.data_ptr() and slot not in shared:
                    slot.parameter.data = view.clone(memory_format=torch.preserve_format)


def sharded_groups(
    plan: SendPlan, parameters: Mapping[str, nn.Parameter], places: Mapping[str, ShardPlace], size: int
) -> list[ShardedGroup]:
    """Allocate a buffer for each reduce-scatter; it has the number of the plan's group."""
    calls = [group for group in plan.groups if group.exchange == "reduce-scatter"]
    closing = closing_group(plan)
    return [
        ShardedGroup(number, planned, plan.shards, parameters, places, size=size, closing=number == closing)
        for number, planned in enumerate(calls)
    ]


def half_tensors(
    plan: SendPlan, groups: Sequence[ShardedGroup], memory: ParameterMemory, only: int | None = None
) -> list[SegmentMemory]:
    """Return the columns of matrices that each segment sends.

    Parameters
    ----------
    only
        Return only the segments of this call (default: of all calls).
    """
    found: list[SegmentMemory] = []
    for planned in plan.segments:
        if only is not None and planned.group != only:
            continue
        call = plan.groups[planned.group]
        parts = (
            groups[planned.group].parts
            if call.exchange == "reduce-scatter"
            else [memory.matrices[number] for number in call.shards]
        )
        column_bytes = parts[0].shape[0] * parts[0].element_size()
        first = planned.offset_bytes // column_bytes
        last = first + planned.size_bytes // column_bytes
        columns = []
        at = 0
        for part in parts:
            start, end = max(first - at, 0), min(last - at, part.shape[1])
            if end > start:
                columns.append(part[:, start:end])
            at += part.shape[1]
        found.append(tuple(columns))
    return found


def _shared(name: str) -> str:
    return (
        f"something outside of the model shares the memory of {name} (p.data, a view, a state_dict, a NumPy"
        " array or a retained graph): drop it first, or use AllReduce(sharding='off')"
    )


def why_not_in_shards(parameters: Mapping[str, nn.Parameter], model: nn.Module) -> str | None:
    """Return why parameters cannot be moved into shards, or None if they can."""
    for name, parameter in parameters.items():
        if not parameter.is_floating_point():
            return f"{name} is {parameter.dtype}"
        if not parameter.numel():
            return f"{name} is empty"
        if not dense(parameter):
            return f"{name} leaves gaps in memory"
    owners: dict[int, str] = {}
    named = (*model.named_parameters(), *model.named_buffers())
    for name, tensor in ((name.replace("_orig_mod.", ""), tensor) for name, tensor in named):
        if tensor.layout is not torch.strided or not tensor.numel():
            continue
        storage = tensor.untyped_storage().data_ptr()
        other = owners.setdefault(storage, name)
        if other != name and (name in parameters or other in parameters):
            return f"{name} shares memory with {other}"
    for name, parameter in parameters.items():
        if shared_elsewhere(parameter):
            return _shared(name)
        if parameter.untyped_storage().is_shared():
            return f"{name} lies in memory that other processes share"
    return None
