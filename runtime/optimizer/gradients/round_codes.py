"""What ranks tell one another about a round: a small number each, summed with the last group's gradients.

Every rank writes its number into its own place and zeros into the others', so the sum holds all numbers: an
exchange between all ranks that costs no collective of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

_LATE, _READ, _IDLE, _KEPT = 1, 2, 4, 8
_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCode:
    """What one rank says as it seals a round.

    Attributes
    ----------
    late
        Whether it has gradients that were computed after their groups were handed over.
    read
        Whether user code has read gradients, and may have changed them.
    idle
        Whether it has computed none.
    kept
        Whether user code keeps gradients, so that they are complete as each backward pass ends.
    step
        How many steps it has taken, modulo 4.
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
        """Read what ``int`` made."""
        return cls(
            late=bool(number & _LATE),
            read=bool(number & _READ),
            idle=bool(number & _IDLE),
            kept=bool(number & _KEPT),
            step=number // 16,
        )


def disagreement(codes: Sequence[RoundCode]) -> str:
    """Say which ranks are not in the same step; empty when all are."""
    first = codes[0].step
    others = [rank for rank, code in enumerate(codes) if code.step != first]
    if not others:
        return ""
    return (
        f"rank {others[0]} is in another step than rank 0: one of them called step() more often, or read"
        " gradients and then ran another backward pass; every rank must do so alike"
    )


def substitute_for_idle(codes: Sequence[RoundCode]) -> int | None:
    """Return the rank whose gradients all ranks go on with, where some could not read them.

    A rank without a backward pass finds no gradients, so what the others make of theirs, by clipping say, it
    can only take over. None where every rank has its own.
    """
    if not any(code.idle for code in codes):
        return None
    return next((rank for rank, code in enumerate(codes) if code.read and not code.idle), None)


def may_keep(codes: Sequence[RoundCode]) -> bool:
    """Whether a rank keeps gradients, or may: it read them, and others had none that they could keep."""
    return any(code.kept for code in codes) or (
        any(code.idle for code in codes) and any(code.read for code in codes)
    )
