"""Applies the user's optimizer to this rank's rows; only the state of these rows is kept."""

import functools
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from pace.errors import InvalidUse
from pace.runtime.engine.buffers import Slot, kept_elsewhere, like
from pace.runtime.gates.gradient_gates import without_gates
from pace.runtime.gates.guarded_tensors import guard
from pace.runtime.gates.optimizer_methods import step_was_replaced, update_rule
from pace.runtime.optimizer.group_update import TwinOptimizer, full_name
from pace.runtime.optimizer.shards.checkpoint import (
    ParameterPiece,
    PieceState,
    ShardedState,
    SlotState,
    joined,
    loaded,
    saved,
)
from pace.runtime.optimizer.shards.shard_memory import ParameterMemory, ShardedGroup
from pace.runtime.optimizer.usage import Usage
from pace.runtime.transports.device import Device
from pace.runtime.transports.transport import Transport

# Optimizers that update each element from the same element of gradient and state, and from common numbers.
_ELEMENTWISE = frozenset(
    update_rule(getattr(torch.optim, name))
    for name in (
        "ASGD",
        "Adadelta",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
    )
)


def why_not_elementwise(optimizer: torch.optim.Optimizer) -> str | None:
    """Return why this optimizer's update cannot be applied to parts of parameters, or None if it can."""
    if step_was_replaced(optimizer):
        return f"the step of this {type(optimizer).__name__} was replaced by another function"
    if update_rule(type(optimizer)) not in _ELEMENTWISE:
        return f"{full_name(optimizer)} is not known to update each element from its own gradient alone"
    return None


class ShardUpdate(TwinOptimizer):
    """Updates this rank's pieces of parameters. It holds the user's optimizer's state until ``hand_back``.

    Parameters
    ----------
    calls
        The gradients' buffers, by number.
    usage
        Counts how often the state was gathered, also under earlier plans.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        slots: Sequence[Slot],
        calls: Sequence[ShardedGroup],
        memory: ParameterMemory,
        usage: Usage,
    ) -> None:
        super().__init__(optimizer)
        self._slots = slots
        self._calls = calls
        self._memory = memory
        self._owner = self.owners()
        self._state: dict[torch.Tensor, dict[str, Any]] = {}
        self._updated: list[tuple[torch.Tensor, SlotState | None]] = []
        self._decision: tuple[torch.Tensor, Any] | None = None
        self._lock = threading.Lock()
        self._usage = usage
        self._last: dict[Slot, SlotState] | None = None
        self._copies: list[tuple[weakref.ref[torch.Tensor], int, int]] = []
        self.take_state()

    @property
    def state(self) -> dict[torch.Tensor, dict[str, Any]]:
        """The state of this rank's pieces, after the last update."""
        self.settle()
        return self._state

    @state.setter
    def state(self, state: dict[torch.Tensor, dict[str, Any]]) -> None:
        self.settle()
        self._state = state

    def apply(self, slots: Iterable[Slot], finite: torch.Tensor | None = None) -> None:
        """Update this rank's pieces of parameters, with the hyper-parameters of the last ``snapshot``.

        Any thread may call this, one at a time.

        Parameters
        ----------
        slots
            The slots of parameters that have a gradient.
        finite
            On a device: whether to keep the update, which the host does not know; see ``decide``.
        """
        members: dict[int, list[torch.Tensor]] = {}
        for slot in slots:
            piece = self._memory.pieces.get(slot)
            if piece is not None:
                piece.grad = self._calls[slot.fused.number].pieces[slot]
                members.setdefault(self._owner[slot.parameter], []).append(piece)
        if not members:
            return
        pieces = [] if finite is None else [piece for each in members.values() for piece in each]
        before = [(piece, piece.clone(), _kept(self._state.get(piece))) for piece in pieces]
        try:
            with without_gates():
                self.step(dict(sorted(members.items())), state=self._state)
            for piece, old, values in before:
                assert finite is not None
                piece.copy_(torch.where(finite, piece, old))
                for name, value in (values or {}).items():
                    if _is_elementwise(value):
                        new = self._state[piece][name]
                        new.copy_(torch.where(finite, new, value))
                self._updated.append((piece, _scalars(values)))
        finally:
            for pieces in members.values():
                for piece in pieces:
                    piece.grad = None

    def decide(self, finite: torch.Tensor, device: Device) -> None:
        """End a step whose updates the device keeps only if `finite` is true there."""
        self._decision = finite.to("cpu", non_blocking=True), device.now()

    def settle(self) -> None:
        """Wait until the device has decided about the last step; if against it, take back what is left.

        The device has restored elements itself. Step counts, which the next update reads on the host, and
        state that the step created are restored here, an iteration later.
        """
        if self._decision is None:
            return
        (finite, moment), self._decision = self._decision, None
        moment.synchronize()
        updated, self._updated = self._updated, []
        for piece, values in [] if finite else updated:
            if values is None:
                self._state.pop(piece, None)
            else:
                self._state[piece].update(values)

    # The optimizer's state.

    def states(self) -> list[dict[str, Any]]:
        """Return the state of each of this rank's pieces."""
        return list(self.state.values())

    def take_state(self) -> None:
        """Keep this rank's pieces of the user's optimizer's state, and remove the state there."""
        own = self._optimizer.state
        self._copies.clear()
        with self._lock, without_gates():
            self.state = self.new_state()
            for slot in self._slots:
                values = own.pop(slot.parameter, None)
                piece = self._memory.pieces.get(slot)
                if values and piece is not None:
                    self.state[piece] = _piece_of(values, slot, self._memory)
                if values:
                    _expire(values, slot.name)

    def take_away(self, step: int) -> None:
        """Remove the whole state from the user's optimizer again, and note what user code keeps of it.

        Parameters
        ----------
        step
            Number of steps taken.
        """
        with without_gates():
            for slot in self._slots:
                for value in (self._optimizer.state.pop(slot.parameter, None) or {}).values():
                    if isinstance(value, torch.Tensor):
                        self._copies.append((weakref.ref(value), value._version, step))

    def refuse_changed_copies(self) -> None:
        """Check that user code has not changed what ``state_dict()`` returned, as that has no effect.

        Raises
        ------
        InvalidUse
            If it has.
        """
        self._copies = [each for each in self._copies if each[0]() is not None]
        for reference, version, _ in self._copies:
            value = reference()
            if value is not None and value._version != version:
                raise InvalidUse(
                    "what state_dict() returned was changed, but with sharded updates it is a copy: change"
                    " optimizer.state, or pass the changed state to load_state_dict()"
                )

    def refuse_copies(self, state_dict: Mapping[str, Any], step: int) -> None:
        """Check that a state to be loaded is not what ``state_dict()`` returned before an earlier step.

        Raises
        ------
        InvalidUse
            If it is: torch's own would be the current state.
        """
        copies = {id(reference()) for reference, _, taken in self._copies if taken != step}
        entries = state_dict.get("state", {}).values()
        if any(id(value) in copies for entry in entries for value in entry.values() if value is not None):
            raise InvalidUse(
                "this state is from before the last step(): with sharded updates, what state_dict() returns"
                " must be copied to be loaded later: keep copy.deepcopy(optimizer.state_dict())"
            )

    def hand_back(self, transport: Transport, step: int, *, last: bool) -> None:
        """Give the user's optimizer the whole state again; see ``gathered``."""
        found = self.gathered(transport, step, last=last)
        own = self._optimizer.state
        with without_gates():
            for slot, values in found.items():
                own[slot.parameter] = values

    def gathered(self, transport: Transport, step: int, *, last: bool) -> dict[Slot, SlotState]:
        """Join the pieces of all ranks. Each rank takes part in this call, or in a background thread.

        This rank must not take part in a step meanwhile. So no rank can end another step, and no state
        changes.

        Parameters
        ----------
        step
            Number of steps taken.
        last
            Whether this is the last call in which this rank takes part.
        """
        with self._lock:
            if self._last is not None:
                return self._last
            if transport.peers is not None:
                transport.peers.ask_for_state(self._usage.num_gathered + 1, step, last=last)
            return self._gather(transport, step, last=last)

    def give(self, transport: Transport, step: int, asked: list[int]) -> bool:
        """Take part in a gathering that another rank asked for; return whether it took place."""
        number, at_step, last = asked
        if at_step != step or not self._lock.acquire(blocking=False):
            return False
        try:
            if number != self._usage.num_gathered + 1 or self._last is not None:
                return False
            self._gather(transport, step, last=bool(last))
        finally:
            self._lock.release()
        return True

    def _gather(self, transport: Transport, step: int, *, last: bool) -> dict[Slot, SlotState]:
        self._usage.num_gathered += 1
        found: dict[Slot, SlotState] = {}
        ends = False
        for number in range(len(self._memory.matrices)):
            slots = [slot for slot in self._slots if self._memory.places[slot.name].shard == number]
            name = f"state.{step}.{self._usage.num_gathered}.{number}"
            replies = transport.gather_aside(bytes([last]) + saved(self._pieces(slots)), name)
            ends = ends or any(each[0] for each in replies)
            device = self._memory.matrices[number].device
            everyone = [loaded(each[1:], device) for each in replies]
            for slot in slots:
                parts = [each[slot.name] for each in everyone if slot.name in each]
                if parts:
                    shaped = functools.partial(_shaped, slot.parameter)
                    found[slot] = joined(parts, slot.parameter.numel(), shaped)
        if ends:
            self._last = found  # a rank has left, so a later request of this rank would not be answered
        return found

    def sharded(self) -> ShardedState:
        """Return this rank's pieces of the state, to be saved or to be loaded into."""
        pieces = {}
        for slot in self._slots:
            piece = self._memory.pieces.get(slot)
            if piece is None:
                continue
            place = self._memory.places[slot.name]
            state = self.state.get(piece)
            pieces[slot.name] = ParameterPiece(
                size=place.size,
                start=place.start,
                end=place.end,
                state={name: _copied(value) for name, value in state.items()} if state else None,
                blank=self.blank_state(piece, self._owner[slot.parameter]),
            )
        groups = [
            {key: _copied(value) for key, value in dict.items(group) if key != "params"}
            for group in self._optimizer.param_groups
        ]
        strides = {slot.name: tuple(slot.parameter.stride()) for slot in self._slots}
        return ShardedState(pieces, strides, groups, self._load)

    def _load(self, pieces: dict[str, PieceState], groups: list[dict[str, Any]]) -> None:
        own = self._optimizer.param_groups
        if len(groups) != len(own):
            raise InvalidUse(
                f"the checkpoint has {len(groups)} parameter groups, but the optimizer has {len(own)}: create"
                " the optimizer with the same groups"
            )
        for group, values in zip(own, groups, strict=True):
            group.update(values)
        with self._lock:
            self.state = self.new_state()
            for slot in self._slots:
                if slot.name in pieces:
                    self.state[self._memory.pieces[slot]] = pieces[slot.name].values

    def _pieces(self, slots: Iterable[Slot]) -> dict[str, PieceState]:
        found = {}
        for slot in slots:
            piece = self._memory.pieces.get(slot)
            if piece is not None and piece in self.state:
                place = self._memory.places[slot.name]
                found[slot.name] = PieceState(place.start, place.end, self.state[piece])
        return found

    @property
    def num_state_bytes(self) -> int:
        """Return the bytes of the state of this rank's rows."""
        return sum(
            value.numel() * value.element_size()
            for values in self.state.values()
            for value in values.values()
            if isinstance(value, torch.Tensor)
        )


def _expire(values: SlotState, name: str) -> None:
    """Make each use of tensors that user code kept of the whole state raise, as they are out of date."""

    def refuse(_tensor: torch.Tensor) -> None:
        raise InvalidUse(
            f"this optimizer state of {name} is from before the last step(), and with sharded updates out of"
            " date: read optimizer.state again. To load one state dict several times, load copies of it by"
            " copy.deepcopy()"
        )

    for value in values.values():
        # One reference is from the dictionary, one from this function.
        if isinstance(value, torch.Tensor) and kept_elsewhere(value, 2):
            guard(value, refuse)


def _is_elementwise(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _kept(values: Mapping[str, Any] | None) -> SlotState | None:
    return {name: _copied(value) for name, value in values.items()} if values else None


def _scalars(values: SlotState | None) -> SlotState | None:
    if values is None:
        return None
    return {name: value for name, value in values.items() if not _is_elementwise(value)}


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _shaped(parameter: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    return like(flat, parameter)


def _piece_of(values: Mapping[str, Any], slot: Slot, memory: ParameterMemory) -> SlotState:
    place = memory.places[slot.name]
    found: SlotState = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and value.shape == slot.parameter.shape and name not in SCALARS:
            flat = value.new_empty(place.size)
            like(flat, slot.parameter).copy_(value)
            found[name] = flat[place.start : place.end].clone()
        else:
            found[name] = value.clone() if isinstance(value, torch.Tensor) else value
    return found


# Entries of the state that hold one number for the whole parameter, even if the parameter has one element.
SCALARS = frozenset({"step", "eta", "mu", "mu_product"})
