"""Round codes: a number with which each rank describes its round, summed with the last group's gradients.

Every rank writes its number into its own place and zeros into the others' places. So the sum holds the
numbers of all ranks, and the exchange needs no collective of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

_LATE, _READ, _IDLE, _KEPT = 1, 2, 4, 8
_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCode:
    """One rank's description of its round, made when the round is sealed.

    Attributes
    ----------
    late
        Whether the rank computed gradients after their groups had been submitted.
    read
        Whether user code has read gradients, and may have changed them.
    idle
        Whether the rank has computed no gradients.
    kept
        Whether user code keeps gradients, so that they must be complete when each backward pass ends.
    step
        How many steps the rank has taken, modulo 4.
    """

    late: bool
    read: bool
    idle: bool
    kept: bool
    step: int

    def __int__(self) -> int:
        """Encode as a number below 64, which every dtype of gradients holds exactly."""
        flags = _LATE * self.late + _READ * self.read + _IDLE * self.idle + _KEPT * self.kept
        return flags + 16 * (self.step % _STEPS)

    @classmethod
    def decode(cls, number: int) -> Self:
        """Decode the number that ``int`` returned."""
        return cls(
            late=bool(number & _LATE),
            read=bool(number & _READ),
            idle=bool(number & _IDLE),
            kept=bool(number & _KEPT),
            step=number // 16,
        )


def disagreement(codes: Sequence[RoundCode]) -> str:
    """Return a message that names ranks in different steps; empty if all are in the same."""
    first = codes[0].step
    others = [rank for rank, code in enumerate(codes) if code.step != first]
    if not others:
        return ""
    return (
        f"rank {others[0]} is in another step than rank 0: one of them called step() more often, or ran"
        " another backward pass after it read gradients or while the loop keeps them;"
        " every rank must do the same"
    )


def substitute_for_idle(codes: Sequence[RoundCode]) -> int | None:
    """Return the rank whose gradients all ranks must take over; None if every rank can use its own.

    A rank without a backward pass reads no gradients. If other ranks change theirs, for example by clipping,
    it must take over the changed gradients.
    """
    if not any(code.idle for code in codes):
        return None
    return next((rank for rank, code in enumerate(codes) if code.read and not code.idle), None)


def may_keep(codes: Sequence[RoundCode]) -> bool:
    """Return whether a rank keeps gradients, or may: it read them, and an idle rank had none to keep."""
    return any(code.kept for code in codes) or (
        any(code.idle for code in codes) and any(code.read for code in codes)
    )
