"""Where gradients and parameters lie when they are summed and updated by shards.

A shard is a matrix with a row for each rank, in which its gradients, or its parameters, lie one behind the
other. Each rank owns one row of every shard; what a gradient has in it is this rank's *piece* of it.
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
    """Where a gradient lies in its shard, and which of its elements are in this rank's row.

    Attributes
    ----------
    offset, size
        In elements of the whole matrix.
    start, end
        Its elements in the row, in the order in which they lie in memory; equal where there are none.
    """

    shard: int
    offset: int
    size: int
    start: int
    end: int


def places_of(plan: SendPlan, parameters: Mapping[str, nn.Parameter], rank: int) -> dict[str, ShardPlace]:
    """Return every gradient's place."""
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
    """The gradients of a reduce-scatter: its shards' matrices, one behind the other.

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
        # Its marks and codes travel beside it.
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
    """The matrices that parameters lie in while they are updated by shards; moves them there.

    Parameters
    ----------
    slots
        Of all parameters.

    Attributes
    ----------
    matrices
        By shard.
    pieces
        This rank's part of each parameter that has one.
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
        """Move parameters here that lie elsewhere: at the start, and those that user code has moved."""
        with torch.no_grad():
            for slot, view in self._views.items():
                parameter = slot.parameter
                if parameter.data_ptr() != view.data_ptr() or parameter.stride() != view.stride():
                    if shared_elsewhere(parameter):
                        raise InvalidUse(f"updates are sharded, and {_shared(slot.name)}")
                    view.copy_(parameter)
                    parameter.data = view

    def announce(self) -> None:
        """Have autograd notice that all parameters change: graphs from before are stale."""
        for slot in self._views:
            torch.autograd.graph.increment_version(slot.parameter)

    def leave(self, shared: Sequence[Slot]) -> None:
        """Give every parameter memory of its own again, but for those whose memory somebody else has, too."""
        with torch.no_grad():
            for slot, view in self._views.items():
                if slot.parameter.data_ptr() == view.data_ptr() and slot not in shared:
                    slot.parameter.data = view.clone(memory_format=torch.preserve_format)


def sharded_groups(
    plan: SendPlan, parameters: Mapping[str, nn.Parameter], places: Mapping[str, ShardPlace], size: int
) -> list[ShardedGroup]:
    """Allocate a buffer for each reduce-scatter; their numbers are those of the plan's groups."""
    calls = [group for group in plan.groups if group.exchange == "reduce-scatter"]
    closing = closing_group(plan)
    return [
        ShardedGroup(number, planned, plan.shards, parameters, places, size=size, closing=number == closing)
        for number, planned in enumerate(calls)
    ]


def half_tensors(
    plan: SendPlan, groups: Sequence[ShardedGroup], memory: ParameterMemory, only: int | None = None
) -> list[SegmentMemory]:
    """For every segment, the columns of the matrices that it sends.

    Parameters
    ----------
    only
        A call whose segments alone are wanted.
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
        " array or a graph that is kept): drop it first, or give AllReduce(sharding='off')"
    )


def why_not_in_shards(parameters: Mapping[str, nn.Parameter], model: nn.Module) -> str | None:
    """Say why parameters cannot be moved into shards; None when they can."""
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
