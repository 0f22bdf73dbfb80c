"""Pending updates, which are applied when their parameters are used, and the guards that notice this use."""

import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch
from torch import nn

from pace.errors import InvalidUse
from pace.runtime.engine.buffers import Awaited, FusedGroup, Slot
from pace.runtime.gates.guarded_tensors import Guard, forget_guards, guard_all, unguard_all, without_guards
from pace.runtime.gates.memory_watch import MemoryWatch
from pace.runtime.gates.model_wrapper import ModelWrapper, refuse_reducing
from pace.runtime.gates.parameter_gates import Attention
from pace.runtime.optimizer.group_update import GroupUpdate, TwinOptimizer, plain_mode
from pace.runtime.optimizer.live_wrappers import FORKED
from pace.runtime.optimizer.poison import Poison
from pace.runtime.optimizer.shards.whole_updates import WholeUpdates
from pace.runtime.optimizer.usage import Usage


class PendingUpdates(WholeUpdates):
    """The part of ``Rounds`` that applies updates, each just before its parameters are used."""

    groups: list[FusedGroup]
    _update: TwinOptimizer | None
    _usage: Usage
    _model_wrapper: ModelWrapper | None
    _poison: Poison | None
    _lock: threading.RLock
    _attention: Attention
    _memory_watch: MemoryWatch
    _held_state: Callable[[Sequence[torch.Tensor]], Collection[torch.Tensor]]
    _guards: Mapping[int, Guard]
    _guarded: list[nn.Parameter]
    _parameters: list[nn.Parameter]
    _at_entry: Sequence[Awaited]
    _at_step: Sequence[Awaited]
    _num_pending = 0
    _entered = False

    @property
    def _learning(self) -> bool:
        return self._update is not None and not self._usage.watched

    def _attend(self) -> None:
        self._attention.needed = self._learning or self._num_pending > 0
        if not self._attention.needed:
            forget_guards(self._guards)

    def _groups_with(self, names: frozenset[str]) -> Sequence[Awaited]:
        return [group for group in self.groups if not names.isdisjoint(group.planned.gradients)]

    def finish(self, group: Awaited) -> None:
        """Wait for a group's all-reduce and apply its update, if one is pending."""
        if group.pending:
            with self._lock:
                self._apply(group)

    def _apply(self, group: Awaited) -> None:
        if not group.pending:  # another thread was faster
            return
        assert isinstance(group, FusedGroup)
        assert isinstance(self._update, GroupUpdate)
        device = group.buffer.device.type
        with without_guards(), plain_mode(device):
            self.reduction.resolve(group)
            self.reduction.take_over()
            if device != "cpu":
                self._unguard(group.slots)  # torch's optimizers choose kernels by the class of parameters
            try:
                if self._poison is not None:
                    self._poison.give_back(group.slots)
                    self._poison.check("a sum of gradients", [s.view for s in group.slots if s.present])
                self._update.apply(group.number)
            finally:
                self._end_pending(group, group.slots)
        for slot in group.slots:
            slot.cleared = slot.zeroed_later = False

    def _end_pending(self, group: Awaited, slots: Sequence[Slot]) -> None:
        group.pending = False
        self._num_pending -= 1
        self._attend()
        self._unguard(slots if not self._learning else [slot for slot in slots if slot.claimed])

    # Guards: no code uses a parameter whose update is pending.

    def awaited(self, slot: Slot) -> Awaited:
        """Return the group whose update the use of a parameter may have to wait for."""
        return slot.fused

    def _guard(self) -> None:
        guard_all(self._guarded, self._guards)

    @staticmethod
    def _unguard(slots: Iterable[Slot]) -> None:
        unguard_all([slot.parameter for slot in slots])

    def make_current(self, slot: Slot) -> None:
        """Apply a parameter's pending update; the parameter is about to be used."""
        slot.claimed = True
        self.finish(self.awaited(slot))
        unguard_all([slot.parameter])

    def finish_all(self) -> None:
        """Apply all pending updates."""
        if self._num_pending:
            for group in self.groups:
                self.finish(group)

    def _use(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self.finish(self.awaited(slot))

    def _enter(self) -> None:
        refuse_reducing(self._model_wrapper)
        self._entered = True
        if self._num_pending:
            for group in self._at_entry:
                self.finish(group)

    # Updates applied in ``step()``, or before code whose use of parameters cannot be noticed.

    def _finish_unguarded(self) -> None:
        """Apply the updates of parameters and state that user code could use or change unnoticed."""
        for group in self._at_step:
            self.finish(group)
        shared: set[torch.Tensor] = {slot.parameter for slot in self._memory_watch.shared()}
        shared.update(self._held_state(self._parameters))
        if shared:
            found = [slot for slot in self.slots if slot.parameter in shared]
            self._usage.tell_of_sharing([slot.name for slot in found])
            for slot in found:
                self.finish(self.awaited(slot))

    def _poison_pending(self) -> None:
        """Poison the parameters whose updates are still pending at the end of ``step()``."""
        if self._poison is not None and self._update is not None:
            pending = [slot for slot in self.slots if self.awaited(slot).pending]
            self._poison.place(pending, self._update.states())

    def finish_in_step(self, parameters: Iterable[nn.Parameter]) -> None:
        """From now on apply the updates of these parameters in ``step()``."""
        wanted = set(parameters)
        names = frozenset(slot.name for slot in self.slots if slot.parameter in wanted)
        if not names <= self._usage.at_step:
            self._usage.at_step |= names
            self._at_step = self._groups_with(self._usage.at_step)
            for group in self._at_step:
                self.finish(group)

    def finish_before(self, parameters: Iterable[nn.Parameter] | None) -> None:
        """Apply the updates of some parameters (None: of all) before code that would use them unnoticed."""
        if self._attention.needed:
            wanted = None if parameters is None else set(parameters)
            for slot in self.slots:
                if wanted is None or slot.parameter in wanted:
                    self.make_current(slot)


class UpdateGuard:
    """The guard of one parameter; it does nothing once its rounds are gone."""

    __slots__ = ("_rounds", "_slot")

    def __init__(self, rounds: PendingUpdates, slot: Slot) -> None:
        self._rounds = weakref.ref(rounds)
        self._slot = slot

    def __call__(self, tensor: torch.Tensor) -> None:
        """Apply the parameter's pending update; called before any use of it."""
        rounds = self._rounds()
        if rounds is None:
            unguard_all([tensor])
        else:
            rounds.make_current(self._slot)


class ForkedGate:
    """The gate of a gradient that was being summed when this process was forked; every access raises."""

    def read(self) -> torch.Tensor | None:
        """See ``GradientGate``."""
        raise InvalidUse(FORKED)

    def write(self, _value: torch.Tensor | None) -> None:
        """See ``GradientGate``."""
        raise InvalidUse(FORKED)


def refuse_forked(_tensor: torch.Tensor) -> None:
    """Raise: this is the guard of a parameter whose update was pending when this process was forked."""
    raise InvalidUse(FORKED)
