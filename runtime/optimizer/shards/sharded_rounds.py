"""Rounds with sharded updates: gradients are summed, clipped and updated by shards, and parameters gathered.

If updates wait for a norm, ``step()`` waits for this rank's rows of all sums, updates its parameters and
submits the gathers. On a device (GPU) the device waits, not the host: norm, clipping and update are queued
behind the sums, and each gather behind its update. Otherwise a thread of the engine applies each update after
its own sums, and its gather follows. The next forward pass waits for each gather when it uses the parameters.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pace.errors import CommunicationFailed
from pace.runtime.engine.buffers import Awaited, FusedGroup, Slot
from pace.runtime.engine.sends import SegmentMemory
from pace.runtime.gates.guarded_tensors import without_guards
from pace.runtime.optimizer.group_update import TwinOptimizer, plain_mode
from pace.runtime.optimizer.rounds import Rounds, RoundSettings
from pace.runtime.optimizer.shards.checkpoint import ShardedState
from pace.runtime.optimizer.shards.shard_memory import (
    ParameterMemory,
    ShardedGroup,
    half_tensors,
    places_of,
    sharded_groups,
)
from pace.runtime.optimizer.shards.shard_reduction import ShardReduction
from pace.runtime.optimizer.shards.shard_update import ShardUpdate


@dataclass(slots=True, kw_only=True, eq=False)
class GatherCall:
    """An all-gather of updated parameters.

    Attributes
    ----------
    number
        Its number in the plan.
    slots
        The slots of the parameters that it gathers.
    pending
        Whether it is submitted and nothing has waited for it yet.
    """

    number: int
    slots: list[Slot]
    pending: bool = False

    @property
    def needs(self) -> list[int]:
        """The numbers of the reduce-scatters whose sums the gathered updates need."""
        return sorted({slot.fused.number for slot in self.slots})


class ShardedRounds(Rounds):
    """Rounds under a sharded plan; see ``Rounds``."""

    reduction: ShardReduction
    _moves_parameters = True
    _lent = False

    def _lay_out(
        self, parameters: Mapping[str, nn.Parameter], settings: RoundSettings
    ) -> tuple[list[FusedGroup], Sequence[Awaited], ShardReduction]:
        plan, transport = self._plan, self._transport
        places = places_of(plan, parameters, transport.rank)
        self._calls: list[ShardedGroup] = sharded_groups(plan, parameters, places, transport.size)
        slots = {slot.name: slot for call in self._calls for slot in call.slots}
        self._memory = ParameterMemory(plan, list(slots.values()), places, transport.size)
        self._gathers = [
            GatherCall(number=number, slots=[slots[name] for name in group.gradients])
            for number, group in enumerate(plan.groups)
            if group.exchange == "all-gather"
        ]
        first = {segment.group: place for place, segment in reversed(list(enumerate(plan.segments)))}
        self._gathers.sort(key=lambda gather: first[gather.number])
        reduction = ShardReduction(
            self._calls,
            [gather.number for gather in self._gathers],
            transport,
            settings.averaging,
            tensors_of=self._tensors,
            early=not settings.clips,
        )
        return list(self._calls), self._gathers, reduction

    def _update_of(self, optimizer: torch.optim.Optimizer) -> TwinOptimizer:
        self._shard_update = ShardUpdate(
            optimizer, list(self._awaited_of), self._calls, self._memory, self._usage
        )
        return self._shard_update

    def _tensors(self, only: int | None = None) -> Sequence[SegmentMemory]:
        return half_tensors(self._plan, self._calls, self._memory, only)

    def close(self) -> None:
        """Remove hooks and gates; give parameters their own memory. See ``Rounds``."""
        shared = self._memory_watch.shared()
        super().close()
        self._memory.leave(shared)

    # From the backward pass to the update.

    def settle_aside(self) -> None:
        """Wait for this rank's rows; see ``Rounds``."""
        for call in self._calls:
            self.engine.wait(call.number)

    def _aside(self) -> contextlib.AbstractContextManager[None]:
        """Return the context for exchanges: while iterations are recorded, they do not count as compute."""
        aside = self._profiling.aside
        return contextlib.nullcontext() if aside is None else aside()

    def clip(self, max_norm: float, norm_type: float) -> torch.Tensor:
        """Clip all gradients of a round by their norm; see ``Rounds``."""
        if not self.reduction.sealed:
            self.seal(read=True)
        self.reduction.adopt_replaced()
        with self._aside():
            return self._clip(max_norm, norm_type)

    def clip_at_step(self, max_norm: float) -> torch.Tensor:
        """Clip as a part of ``step()``; see ``Rounds``."""
        with self._aside():
            self.reduction.agree(norm_type=2.0)
            return self._clip(max_norm, 2.0)

    def _clip(self, max_norm: float, norm_type: float) -> torch.Tensor:
        self._shard_update.settle()
        norm = self.reduction.norm(norm_type)
        self.reduction.clip(max_norm, norm)
        return norm

    def end_pending(self) -> None:
        """Update this rank's rows and submit the gathers, here or in the engine; end the round."""
        recorded = self._profiling.aside is not None
        with self._aside():
            self.reduction.agree()
        self._shard_update.refuse_changed_copies()
        self._take_back_state()
        self._shard_update.settle()
        self._shard_update.snapshot()
        with without_guards():
            self._memory.adopt()
            self._memory.announce()
        # Before the gathers: while one is sent, the transport has views of its parameters' memory.
        shared = self._shared()
        device = self._calls[0].buffer.device.type if self._calls else "cpu"
        in_thread = self.reduction.early and not recorded and self._transport.device is None
        for gather in self._gathers:
            # From here on user code may clear gradients for the next step.
            update = functools.partial(self._update_rows, [s for s in gather.slots if s.present], device)
            if in_thread:
                self.engine.submit(gather.number, after=gather.needs, prepare=update)
            else:
                for number in gather.needs:
                    self.engine.wait(number)
                update()
                self.engine.submit(gather.number)
        if self.reduction.finite is not None and self._transport.device is not None:
            self._shard_update.decide(self.reduction.finite, self._transport.device)
        for slot in self.slots:
            slot.cleared_to = None
        self._end(pending=True)
        self._guard()
        with self._aside():
            if recorded:
                self.finish_all()
            self._finish_unguarded(shared)
        self._watch_pending()

    def _update_rows(self, slots: Sequence[Slot], device: str) -> None:
        with plain_mode(device):
            self._shard_update.apply(slots, self.reduction.finite)

    # From the gathers to the parameters.

    def _apply(self, group: Awaited) -> None:
        if not group.pending:  # another thread was faster
            return
        assert isinstance(group, GatherCall)
        self.engine.wait(group.number)
        if self._poison is not None:
            self._poison.give_back(group.slots)
        self._end_pending(group, group.slots)

    def _watch_pending(self) -> None:
        if self._poison is not None:  # gathers write to parameters, so poison would not last
            for gather in self._gathers:
                self.engine.wait(gather.number)
        super()._watch_pending()

    # The optimizer's state.

    shards_state = True

    def hand_back(self, *, last: bool = False) -> None:
        """Give the user's optimizer its whole state; see ``Rounds``."""
        self._take_back_state()
        self._shard_update.hand_back(self._transport, self.number, last=last)

    def lend_state(self) -> None:
        """Give the user's optimizer its whole state until the next step; see ``Rounds``."""
        if not self._lent:
            self._shard_update.hand_back(self._transport, self.number, last=False)
            self._lent = True

    def refuse_copies(self, state_dict: dict[str, Any]) -> None:
        """Check that a state to be loaded is none of an earlier step; see ``Rounds``."""
        self._shard_update.refuse_copies(state_dict, self.number)

    def _take_back_state(self) -> None:
        """Take over changes of the state that user code has made since ``lend_state``."""
        if self._lent:
            self._lent = False
            self._shard_update.take_state()

    def give_state(self, asked: list[int]) -> bool:
        """Take part in a gathering of state; see ``Rounds``."""
        try:
            return not self.closed and self._shard_update.give(self._transport, self.number, asked)
        except CommunicationFailed:  # the rank that asked gets this error too
            return False

    def take_state(self) -> None:
        """Keep only this rank's pieces of the user's optimizer's state."""
        self._lent = False
        self._shard_update.take_state()

    @contextlib.contextmanager
    def whole_state(self) -> Iterator[bool]:
        """Inside, the user's optimizer has its whole state; see ``Rounds``."""
        self.hand_back()
        try:
            yield True
        finally:
            self._shard_update.take_away(self.number)

    def sharded_state(self) -> ShardedState:
        """Return this rank's pieces of the optimizer's state."""
        self._take_back_state()
        return self._shard_update.sharded()

    @property
    def num_state_bytes(self) -> int:
        """Return the bytes of this rank's optimizer state."""
        return self._shard_update.num_state_bytes
