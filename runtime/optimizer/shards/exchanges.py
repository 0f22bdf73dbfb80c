"""The small messages that ranks exchange once a round's gradients are summed by rows."""

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

from pace.runtime.engine.buffers import FusedGroup, Slot
from pace.runtime.optimizer.round_marks import RoundCode, RoundMarks
from pace.runtime.transports.transport import Transport

Want = Literal["gradients", "norm", "step"]
"""What a rank waits for: all rows of all gradients, their norm, or ``step()`` on the other ranks."""

_WANTS: tuple[Want, ...] = get_args(Want)
_HEAD = struct.Struct("<BBBddd")
_HERE, _HELD = 1, 2
_UNSCALED, _DROPPED, _COUNTED = 1, 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMessage:
    """The message of one rank.

    Attributes
    ----------
    want
        What the rank waits for.
    code
        The rank's description of its round.
    coefficient
        The factor by which the rank has multiplied its rows to clip them.
    unscaled
        Whether a GradScaler has divided its rows by the scale.
    dropped
        Whether the gradients must not be used, because their norm was not finite.
    norm_type
        The order of the norm that the rank asks for or contributes to.
    power
        What its rows contribute to the norm: a sum of powers, or the largest absolute value. None if not
        computed.
    marks
        For each gradient: whether the rank contributed to it, and whether it has an earlier, uncleared sum of
        it.
    """

    want: Want
    code: RoundCode
    coefficient: float
    unscaled: bool
    dropped: bool
    norm_type: float
    power: float | None
    marks: bytes

    @property
    def plain(self) -> bool:
        """Whether the rank only waits for ``step()`` and has not changed its rows."""
        held = any(mark & _HELD for mark in self.marks)
        return self.want == "step" and self.power is None and not (self.code.late or self.code.read or held)

    def encode(self) -> bytes:
        """Serialize; the number of bytes depends only on the number of gradients."""
        flags = _UNSCALED * self.unscaled + _DROPPED * self.dropped + _COUNTED * (self.power is not None)
        power = 0.0 if self.power is None else self.power
        head = _HEAD.pack(
            _WANTS.index(self.want), int(self.code), flags, self.coefficient, self.norm_type, power
        )
        return head + self.marks

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Decode the bytes that ``encode`` returned."""
        want, code, flags, coefficient, norm_type, power = _HEAD.unpack_from(payload)
        return cls(
            want=_WANTS[want],
            code=RoundCode.decode(code),
            coefficient=coefficient,
            unscaled=bool(flags & _UNSCALED),
            dropped=bool(flags & _DROPPED),
            norm_type=norm_type,
            power=power if flags & _COUNTED else None,
            marks=payload[_HEAD.size :],
        )


def total_norm(messages: Sequence[ShardMessage], norm_type: float) -> float:
    """Return the norm from all ranks' contributions; the same number on every rank."""
    powers = [message.power for message in messages if message.power is not None]
    assert len(powers) == len(messages)
    if any(math.isnan(power) for power in powers):
        return math.nan
    if norm_type == math.inf or any(power == math.inf for power in powers):
        return max(powers)
    total: float = math.fsum(powers) ** (1.0 / norm_type)
    return total


class ShardMarks(RoundMarks):
    """Marks and codes that are sent in ``ShardMessage``; in a second turn, in a separate message."""

    def __init__(self, transport: Transport, groups: Sequence[FusedGroup]) -> None:
        super().__init__(transport, len(groups), scale=1.0)
        self.beside = True
        self._sizes = [len(group.slots) for group in groups]
        self.code = RoundCode(late=False, read=False, idle=True, kept=False, step=0)

    def exchange(self, code: RoundCode) -> None:
        """Keep this rank's code until rows are summed."""
        self.code = code

    def mine(self, held: set[Slot], groups: Sequence[FusedGroup]) -> bytes:
        """Return this rank's marks."""
        return bytes(
            _HERE * here + _HELD * (slot in held)
            for group in groups
            for slot, here in zip(group.slots, self._marks[group.number], strict=True)
        )

    def learn(self, messages: Sequence[ShardMessage]) -> int | None:
        """Read the codes and marks of all ranks.

        Returns
        -------
        int or None
            A gradient whose earlier sum some ranks have cleared and others have not; None if there is none.
        """
        self._codes = [message.code for message in messages]
        columns = list(zip(*(message.marks for message in messages), strict=True))
        self._spread([any(mark & _HERE for mark in column) for column in columns])
        return next(
            (number for number, column in enumerate(columns) if len({mark & _HELD for mark in column}) > 1),
            None,
        )

    def exchange_again(self) -> None:
        """Exchange what ``write`` has written on each rank; every rank calls it."""
        mine = json.dumps([mark for marks in self._marks for mark in marks]).encode()
        replies = [json.loads(each) for each in self._transport.gather(mine)]
        self._spread([any(column) for column in zip(*replies, strict=True)])

    def _spread(self, marks: Sequence[bool]) -> None:
        rest = iter(marks)
        self._marks = [[next(rest) for _ in range(size)] for size in self._sizes]
