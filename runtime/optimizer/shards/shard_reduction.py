"""Gradients that are summed by rows: what a rank does with its rows, and when all ranks need all rows.

After the backward pass ranks exchange small messages (``exchanges``) until all of them have called
``step()``. They do so for the norm, or because a rank needs whole gradients, for example because user code
reads them. Then all ranks gather all rows and continue as after an all-reduce. A rank in ``step()`` takes
part until all ranks are there.

In an *early* round every rank only calls ``step()``, without clipping or reading gradients. The first
messages of such a round are exchanged before any row is summed, and each update waits only for its own rows.
In other rounds, ranks wait for their rows before they exchange messages. Each round is expected to be like
the last ones; the messages tell when it is not.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from pace.errors import CommunicationFailed, InvalidUse
from pace.runtime.capture.update_rule import note_norm_of_all
from pace.runtime.engine.buffers import FusedGroup, Slot
from pace.runtime.engine.engine import Engine
from pace.runtime.engine.sends import SegmentMemory
from pace.runtime.gates.gradient_gates import local_gradient
from pace.runtime.optimizer.reduction import Averaging, Reduction, coefficient_for
from pace.runtime.optimizer.round_marks import RoundCode
from pace.runtime.optimizer.shards.exchanges import ShardMarks, ShardMessage, Want, total_norm
from pace.runtime.optimizer.shards.shard_memory import ShardedGroup
from pace.runtime.transports.transport import Transport

# After so many plain rounds in a row, the next one is early.
_PLAIN_ROUNDS = 3


@dataclass(slots=True)
class RowTurn:
    """What has happened since a round was sealed.

    Attributes
    ----------
    told
        Whether ranks have exchanged which gradients exist.
    plain
        Whether every rank only waited for ``step()`` then.
    early
        Whether updates may begin before all rows are summed.
    summed
        Whether the rows are summed.
    whole
        Whether every rank has all rows.
    replies
        The latest messages, as long as they describe the rows.
    agreed
        Whether all ranks have called ``step()``.
    total
        On a device: the norm of all ranks' rows, which the host has not read.
    finite
        On a device: whether the norm by which rows were clipped is finite.
    infinities
        Tensors for a GradScaler to find instead of gradients that are not finite.
    """

    told: bool = False
    plain: bool = False
    early: bool = False
    summed: bool = False
    whole: bool = False
    coefficient: float = 1.0
    unscaled: bool = False
    dropped: bool = False
    agreed: bool = False
    norm_type: float | None = None
    replies: list[ShardMessage] | None = None
    infinities: dict[torch.dtype, torch.Tensor] = field(default_factory=dict)
    total: torch.Tensor | None = None
    finite: torch.Tensor | None = None


class ShardReduction(Reduction):
    """The buffers of reduce-scatters, the messages about their rows, and the operations on rows.

    Parameters
    ----------
    gathers
        The numbers of the plan's gathers. A turn without an update skips them.
    early
        Whether the first rounds are expected to be early.

    Attributes
    ----------
    held
        Gradients of the last step that user code has not cleared.
    """

    by_rows = True
    _marks: ShardMarks

    def __init__(
        self,
        groups: Sequence[ShardedGroup],
        gathers: Sequence[int],
        transport: Transport,
        averaging: Averaging,
        *,
        tensors_of: Callable[[int], Sequence[SegmentMemory]],
        early: bool,
    ) -> None:
        super().__init__(list(groups), transport, averaging, tensors_of=tensors_of)
        self._gathers = gathers
        self._calls = groups
        self._expects_early = early
        self._num_plain = 0
        self._turn = RowTurn()
        self._want: Want = "gradients"
        self._carried: dict[Slot, torch.Tensor] = {}
        self.held: set[Slot] = set()
        self._on_device = transport.device is not None

    def _marks_of(self, groups: list[FusedGroup]) -> ShardMarks:
        return ShardMarks(self._transport, groups)

    def attach(
        self,
        engine: Engine,
        ask: Callable[[int], None] | None = None,
        compare_state: Callable[[], None] = lambda: None,
    ) -> None:
        """Send through this engine; see ``Reduction``."""
        super().attach(engine, ask, compare_state)
        if not self._expects_early:
            engine.separate_halves(apart=True)

    @property
    def early(self) -> bool:
        """Whether updates of this round wait for their own rows only, once all ranks ``agree``."""
        return self._turn.early

    # This rank's contribution.

    def _submit(self, group: FusedGroup, code: RoundCode | None = None) -> None:
        if self.held:
            for slot, piece in self._calls[group.number].pieces.items():
                if slot in self.held:
                    self._carried[slot] = piece.clone()
        super()._submit(group, code)

    def _absent(self, slot: Slot) -> bool:
        return super()._absent(slot) or slot in self.held

    def seal(self, *, read: bool) -> None:
        """Submit all remaining groups; see ``Reduction``."""
        self._turn = RowTurn()
        super().seal(read=read)

    def drop(self, slot: Slot) -> None:
        """Withdraw this rank's contribution to a gradient; see ``Reduction``."""
        super().drop(slot)
        self.held.discard(slot)

    # The result of all ranks.

    def _learn_codes(self, closing: FusedGroup) -> list[RoundCode]:
        self._exchange()
        return self._marks.codes(closing)

    def _evaluate(self) -> None:
        if self._evaluated or self.closing is None:
            return
        super()._evaluate()
        self._serve()

    def _meet(self, want: Want) -> None:
        self._want = want
        self._exchange()
        self._serve()

    def _serve(self) -> None:
        """Gather all rows, on all ranks, if one of them needs whole gradients."""
        replies = self._turn.replies
        if replies is None or self._turn.whole or all(each.want != "gradients" for each in replies):
            return
        self._refuse_differences(replies)
        for call in self._calls:
            self.engine.call_aside("all-gather", call.number, call.parts, f"whole.{call.number}")
        self._turn.whole = True
        for group in self._groups:
            self._read_marks(group)

    def resolve(self, group: FusedGroup) -> None:
        """Get the whole gradients of a group; all ranks then have them."""
        if group.resolved:
            return
        self._want = "gradients"
        self._evaluate()
        while not group.resolved:
            self._meet("gradients")

    def cleared(self) -> bool:
        """Return whether all gradients of a sealed round were cleared; see ``Reduction``."""
        if self._turn.whole:
            return super().cleared()
        self._want = "step"
        self._evaluate()
        return not any(
            (mark and not slot.dropped) or local_gradient(slot.parameter) is not None
            for group in self._groups
            for slot, mark in zip(group.slots, self._marks.read(group), strict=True)
        )

    def reopen(self, arriving: Slot | None = None) -> None:
        """Begin another turn of the same step; see ``Reduction``."""
        super().reopen(arriving)
        self._turn = RowTurn()
        for number in self._gathers:
            self.engine.leave_out(number)

    def _sum_again(self, here: list[list[bool]]) -> None:
        """Sum by calls outside the plan, as all ranks have all rows of the first turn."""
        for group, marks in zip(self._calls, here, strict=True):
            self._marks.write(group, marks, None)
            for exchange in ("reduce-scatter", "all-gather"):
                self.engine.call_aside(exchange, group.number, group.parts, f"again.{group.number}")
        with self._abandoned_on_failure():
            self._marks.exchange_again()
        for each in self._groups:
            self._read_marks(each)
        self._turn.replies = None

    # Messages between ranks.

    def _exchange(self) -> None:
        """Exchange messages about rows; wait for this rank's rows only if necessary."""
        turn = self._turn
        # On a device nothing here waits for sums; without one, the sums are the first to tell of late ranks.
        with self._asking_late_ranks() if self._on_device and not turn.told else contextlib.nullcontext():
            if not turn.told and self._expects_early:
                self._open()
                if turn.early:
                    return
            if not turn.summed:
                self._sum_rows()
            replies = self._tell()
        asked = [each.norm_type for each in replies if each.want == "norm"]
        if asked and turn.norm_type is None:
            turn.norm_type = asked[0]
        self._follow(replies)
        counted = turn.norm_type is not None and all(each.power is not None for each in replies)
        if (
            self._on_device
            and counted
            and (turn.total is None or any(each.want == "norm" for each in replies))
        ):
            assert turn.norm_type is not None
            turn.total = self._sum_norms(turn.norm_type)

    def _open(self) -> None:
        """Agree, before rows are summed, on whether the round is early; if not, gathers wait for all rows."""
        turn = self._turn
        if turn.norm_type is not None:
            self._want = "norm"
        if self._want != "step":
            self.engine.separate_halves(apart=True)
            if not self._on_device:
                self._wait_for_others()
        self._tell()
        turn.early = turn.plain
        if not turn.early:
            self._expects_early = False
            self.engine.separate_halves(apart=True)

    def _sum_rows(self) -> None:
        if not (self._turn.told or self._on_device):
            self._wait_for_others()
        for number in range(len(self._groups)):
            self.engine.wait(number)
        for slot, row in self._carried.items():
            self._calls[slot.fused.number].pieces[slot].add_(row)
        self._carried.clear()
        self._turn.summed = True

    def _tell(self) -> list[ShardMessage]:
        """Exchange messages; the first of a turn has marks."""
        turn = self._turn
        first = not turn.told
        counted = turn.summed and turn.norm_type is not None
        mine = ShardMessage(
            want=self._want,
            code=self._marks.code,
            coefficient=turn.coefficient,
            unscaled=turn.unscaled,
            dropped=turn.dropped,
            norm_type=turn.norm_type or 2.0,
            power=self._power(turn.norm_type) if counted and turn.norm_type is not None else None,
            marks=self._marks.mine(self.held, self._groups) if first else b"",
        )
        with self._abandoned_on_failure():
            replies = [ShardMessage.decode(each) for each in self._transport.gather(mine.encode())]
        turn.replies = replies
        if first:
            turn.told = True
            turn.plain = all(each.plain for each in replies)
            differing = self._marks.learn(replies)
            self.held.clear()
            if differing is not None:
                self._refuse(
                    f"the last step's gradient of {self._slots[differing].name} was cleared on some ranks but"
                    " not on others: clear the same gradients on every rank"
                )
        return replies

    def _expect(self) -> None:
        """Expect the next rounds to be like the last ones; every rank decides the same."""
        self._num_plain = self._num_plain + 1 if self._turn.plain else 0
        if not self._expects_early and self._num_plain >= _PLAIN_ROUNDS:
            self._expects_early = True
            self.engine.separate_halves(apart=False)

    def _refuse_differences(self, replies: list[ShardMessage]) -> None:
        leading = [each for each in replies if not each.code.idle]
        if len({(each.coefficient, each.unscaled, each.dropped) for each in leading}) > 1:
            self._refuse(
                "ranks have clipped or unscaled their gradients differently: do the same on every rank before"
                " step()"
            )

    @contextlib.contextmanager
    def _abandoned_on_failure(self) -> Iterator[None]:
        """Abandon everything in flight if an exchange fails: ``close()`` must not wait for a lost rank."""
        try:
            yield
        except CommunicationFailed:
            self.engine.abandon()
            raise

    def _refuse(self, fault: str) -> None:
        self.engine.abandon()
        raise InvalidUse(fault)

    def _follow(self, replies: list[ShardMessage]) -> None:
        """On a rank without a backward pass: clip and unscale its rows as the other ranks did theirs."""
        turn = self._turn
        leading = [each for each in replies if not each.code.idle]
        if not self._marks.code.idle or not leading:
            return
        if leading[0].dropped and not turn.dropped:
            self.drop_all()
        if leading[0].coefficient == turn.coefficient:
            return
        if turn.total is not None:
            self.clip(-leading[0].coefficient, turn.total)
        else:
            self._multiply(leading[0].coefficient / turn.coefficient)
            turn.coefficient = leading[0].coefficient

    # Operations on rows.

    def _power(self, norm_type: float) -> float:
        """Return what this rank's rows contribute to the norm: 0 on a device, which sums it itself."""
        if self._on_device:
            return 0.0
        norms = self._norms(norm_type).tolist()
        if norm_type == math.inf:
            return math.nan if any(map(math.isnan, norms)) else max(norms, default=0.0)
        return math.fsum(norm**norm_type for norm in norms) if all(map(math.isfinite, norms)) else sum(norms)

    def _norms(self, norm_type: float) -> torch.Tensor:
        """Return the norm of each of this rank's pieces, in float64."""
        pieces = [piece for group in self._calls for slot, piece in group.pieces.items() if not slot.dropped]
        norms = torch._foreach_norm(pieces, norm_type, dtype=torch.float64) if pieces else ()
        return torch.stack(norms) if norms else self._calls[0].buffer.new_zeros(1, dtype=torch.float64)

    def _sum_norms(self, norm_type: float) -> torch.Tensor:
        """Sum the norm of all ranks' rows on the device."""
        assert self.closing is not None
        with torch.no_grad():
            mine = torch.linalg.vector_norm(self._norms(norm_type), norm_type)
            norms = mine.new_zeros(self._transport.size)
            norms[self._transport.rank] = mine
            self.engine.call_aside(None, self.closing.number, norms, f"norm.{self.closing.number}.0")
            total: torch.Tensor = torch.linalg.vector_norm(norms, norm_type)
            return total

    def norm(self, norm_type: float) -> torch.Tensor:
        """Return the norm of all gradients; every rank calls it, or ``step()``."""
        note_norm_of_all()
        turn = self._turn
        if not turn.agreed:
            turn.norm_type, turn.replies = norm_type, None
        self._want = "norm"
        self._evaluate()
        while turn.replies is None or any(each.power is None for each in turn.replies):
            self._meet("norm")
        if any(each.norm_type != norm_type for each in turn.replies):
            self._refuse("ranks clip by norms of different orders: use the same norm_type on every rank")
        if turn.total is not None:
            return turn.total
        return torch.tensor(total_norm(turn.replies, norm_type), dtype=torch.float64, device="cpu")

    def clip(self, max_norm: float, norm: torch.Tensor) -> None:
        """Clip all gradients by their norm; drop them if it is not finite.

        On a device the host knows neither, so messages tell `max_norm`, with a minus, as the coefficient.
        """
        turn = self._turn
        if self._on_device:
            self._multiply(coefficient_for(max_norm, norm))
            turn.coefficient, turn.finite = -max_norm, norm.isfinite()
        elif not norm.isfinite():
            self.drop_all()
        elif (coefficient := float(coefficient_for(max_norm, norm))) < 1.0:
            self._multiply(coefficient)
            turn.coefficient *= coefficient

    @property
    def finite(self) -> torch.Tensor | None:
        """Whether the norm by which gradients were clipped is finite; None if the host knows that it is."""
        return self._turn.finite

    def _multiply(self, coefficient: float | torch.Tensor) -> None:
        with torch.no_grad():
            for group in self._calls:
                if self._turn.whole:
                    group.gradients.mul_(coefficient)
                else:
                    for piece in group.pieces.values():
                        piece.mul_(coefficient)

    def drop_all(self) -> None:
        """Drop all gradients because they are not finite; this step changes no parameters."""
        for slot in self._slots:
            self.drop(slot)
        self._turn.dropped = True

    def for_scaler(self, slot: Slot) -> tuple[bool, torch.Tensor | None]:
        """Return whether a GradScaler may check only a part of a gradient, and the part.

        The part is this rank's piece; if the gradients are not finite, it is infinity on every rank. If a
        rank had no backward pass, the GradScaler needs the whole gradient.
        """
        self._want = "norm"
        self._evaluate()
        turn = self._turn
        if self.closing is None or turn.whole or any(c.idle for c in self._marks.codes(self.closing)):
            return False, None
        if not turn.unscaled:
            norm = self.norm(2.0)
            turn.unscaled = True
            if self._on_device:
                self._poison(norm)
            elif not norm.isfinite():
                for group in self._calls:
                    turn.infinities.setdefault(group.buffer.dtype, group.buffer.new_full((1,), math.inf))
        call = self._calls[slot.fused.number]
        mark = self._marks.read(call)[call.slots.index(slot)]
        if not mark or slot.dropped:
            return True, None
        infinity = turn.infinities.get(call.buffer.dtype)
        if infinity is not None:
            return True, infinity
        piece = call.pieces.get(slot)
        return True, call.buffer.new_zeros(1) if piece is None else piece

    def _poison(self, norm: torch.Tensor) -> None:
        """Make the first element of each piece NaN if the norm is not finite; the host does not wait."""
        with torch.no_grad():
            for call in self._calls:
                for piece in call.pieces.values():
                    piece[:1].add_(norm * 0.0)

    def agree(self, norm_type: float | None = None) -> None:
        """Wait until all ranks have called ``step()``, and read which gradients exist.

        Parameters
        ----------
        norm_type
            Order of a norm that all ranks will need next.
        """
        if self._turn.agreed:
            return
        if norm_type is not None:
            self._turn.norm_type, self._turn.replies = norm_type, None
        self._want = "step"
        self._evaluate()
        while self._turn.replies is None or any(each.want != "step" for each in self._turn.replies):
            self._meet("step")
        self._refuse_differences(self._turn.replies)
        self._turn.agreed = True
        self._expect()
        self.take_over()
        for group in self._groups:
            if not group.resolved:
                self._read_marks(group)
                for slot in group.slots:
                    slot.base = slot.zeroed = False

    def end(self) -> None:
        """End the round; see ``Reduction``."""
        if not self._turn.whole:
            self.held = {slot for slot in self._slots if slot.present}
        super().end()

    def restore_held(self) -> None:
        """Gather the uncleared gradients of the last step on all ranks; every rank calls it."""
        if not any(self._transport.gather(b"held" if self.held else b"")):
            return
        for call in self._calls:
            self.engine.call_aside("all-gather", call.number, call.parts, f"held.{call.number}")
        for slot in self.held:
            slot.base = True
            slot.fused.seen = True
        self.held.clear()
