"""Gradients that are summed by rows: what a rank does with its rows, and when all ranks need all rows.

After the backward pass ranks exchange small messages (``exchanges``) until all of them have called
``step()``. They do so for the norm, or because a rank needs whole gradients, for example because user code
reads them. Then all ranks gather all rows and continue as after an all-reduce. A rank in ``step()`` takes
part until all ranks are there.
"""

import math
from collections.abc import Callable, Sequence

import torch

from pace.runtime.capture.update_rule import note_norm_of_all
from pace.runtime.engine.buffers import FusedGroup, Slot
from pace.runtime.engine.plan import SendPlan
from pace.runtime.gates.gradient_gates import local_gradient
from pace.runtime.optimizer.gradients.reduction import Averaging
from pace.runtime.optimizer.gradients.round_marks import RoundCode
from pace.runtime.optimizer.shards.clipping import coefficient_for
from pace.runtime.optimizer.shards.exchanges import ShardMessage, Want, total_norm
from pace.runtime.optimizer.shards.row_messages import RowMessages, RowTurn
from pace.runtime.optimizer.shards.shard_memory import ShardedGroup
from pace.runtime.transports.transport import Transport


class ShardReduction(RowMessages):
    """The buffers of reduce-scatters, and the operations on rows.

    Parameters
    ----------
    gathers
        The numbers of the plan's gathers. A turn without an update skips them.
    early
        Whether the first rounds are expected to be early.
    """

    def __init__(
        self,
        plan: SendPlan,
        groups: Sequence[ShardedGroup],
        gathers: Sequence[int],
        transport: Transport,
        averaging: Averaging,
        *,
        early: bool,
        tensors_of: Callable[[int], Sequence[object]],
    ) -> None:
        super().__init__(plan, groups, transport, averaging, early=early)
        self._gathers = gathers
        self._tensors_of = tensors_of

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

    def _send_again(self, owner: int | None) -> None:
        """Run a second turn with calls outside the plan, as all ranks have all rows of the first turn."""
        self.resolve_all()
        hidden = [(slot, slot.zeroed) for slot in self._slots if slot.present and not slot.base]
        self.turn += 1
        with torch.no_grad():
            for group in self._calls:
                if group.seen:
                    self._leave_to_user(group)
                mine = owner == self._transport.rank
                here = [
                    self._averaging.join(slot) if owner is None else self._averaging.hand_on(slot, mine=mine)
                    for slot in group.slots
                ]
                self._marks.write(group, here, None)
                for exchange in ("reduce-scatter", "all-gather"):
                    self.engine.call_aside(exchange, group.number, group.parts, f"again.{group.number}")
        with self._abandoned_on_failure():
            self._marks.exchange_again()
        for each in self._groups:
            self._read_marks(each)
        for slot, zeroed in hidden:
            slot.base, slot.zeroed = False, zeroed
        self._turn.replies = None

    # Operations on rows.

    def _power(self, norm_type: float) -> float:
        """Return what this rank's rows contribute to the norm; see ``RowMessages``."""
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

    def _leave_to_user(self, group: FusedGroup) -> None:
        if group.release_kept():
            group.allocate()
            self.engine.rebind(group.number, self._tensors_of(group.number))  # type: ignore[arg-type]
            group.settle_references()
