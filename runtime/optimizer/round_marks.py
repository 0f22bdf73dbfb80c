"""What is sent with a round's sums: which rank has which gradient, and every rank's ``RoundCode``.

Every rank writes its code into its own place after the last group's gradients, and zeros into the others'
places. So the sum holds the codes of all ranks, and the exchange needs no collective of its own.
"""

import functools
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from pace.errors import InvalidUse
from pace.runtime.engine.buffers import FusedGroup, Slot
from pace.runtime.transports.transport import Transport

_LATE, _READ, _IDLE, _KEPT, _LOADED = 1, 2, 4, 8, 16
_STEPS = 2
# The step of a rank for which Horovod has added zeros, as it does in ``hvd.join()``.
_JOINED = -1


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
    loaded
        Whether the optimizer's state was loaded since the rank's last round.
    step
        How many steps the rank has taken, modulo 2: every step is a round, so no rank can be two ahead.
    """

    late: bool
    read: bool
    idle: bool
    kept: bool
    step: int
    loaded: bool = False

    def __int__(self) -> int:
        """Encode as a number from 1 to 64, which every dtype of gradients holds exactly."""
        flags = _LATE * self.late + _READ * self.read + _IDLE * self.idle + _KEPT * self.kept
        return flags + _LOADED * self.loaded + 2 * _LOADED * (self.step % _STEPS) + 1

    @classmethod
    def decode(cls, number: int) -> Self:
        """Decode the number that ``int`` returned, or 0."""
        number -= 1
        return cls(
            late=bool(number & _LATE),
            read=bool(number & _READ),
            idle=bool(number & _IDLE),
            kept=bool(number & _KEPT),
            loaded=bool(number & _LOADED),
            step=number // (2 * _LOADED),
        )


class RoundMarks:
    """Marks after each group's gradients, and codes after those of the closing group.

    With a device (GPU) the host does not wait for sums. Marks and codes are then sent separately, over the
    host's own channel.

    Parameters
    ----------
    scale
        The transport multiplies sums by this.

    Attributes
    ----------
    beside
        Whether marks and codes are sent separately.
    """

    def __init__(self, transport: Transport, num_groups: int, *, scale: float) -> None:
        self._transport = transport
        self._scale = scale
        self._codes: list[RoundCode] = []
        self._marks: list[list[bool]] = [[] for _ in range(num_groups)]
        self.beside = transport.device is not None

    def write(self, group: FusedGroup, here: list[bool], code: RoundCode | None) -> None:
        """Write which gradients of a group this rank has, and its code (for the closing group)."""
        if self.beside:
            self._marks[group.number] = here
        elif all(here):
            group.marks.fill_(1)
        else:
            group.marks.copy_(torch.tensor(here, device="cpu"))
        if code is not None and not self.beside:
            group.codes.zero_()
            group.codes[self._transport.rank] = int(code) / self._scale

    def exchange(self, code: RoundCode) -> None:
        """Exchange marks and codes that are sent separately; every rank calls it, after all groups."""
        if not self.beside:
            return
        bits = "".join("1" if mark else "0" for marks in self._marks for mark in marks)
        mine = f"{int(code)} {int(bits or '0', 2):x}"
        replies = [each.split() for each in self._transport.gather(mine.encode())]
        self._codes = [RoundCode.decode(int(number)) for number, _ in replies]
        anywhere = functools.reduce(operator.or_, (int(marks, 16) for _, marks in replies))
        marks = iter(f"{anywhere:0{len(bits)}b}")
        self._marks = [[next(marks) == "1" for _ in here] for here in self._marks]

    def read(self, group: FusedGroup) -> list[bool]:
        """Return which gradients of a summed group exist on any rank."""
        if self.beside:
            return self._marks[group.number]
        return [abs(mark) > 0 for mark in group.marks.tolist()]

    def codes(self, closing: FusedGroup) -> list[RoundCode]:
        """Return every rank's code; the closing group must be summed, or the codes exchanged."""
        if self.beside:
            return self._codes
        return [RoundCode.decode(round(abs(number))) for number in closing.codes.tolist()]


def disagreement(codes: Sequence[RoundCode]) -> str:
    """Return a message that names ranks in different steps; empty if all are in the same."""
    for rank, code in enumerate(codes):
        if code.step == _JOINED:
            return (
                f"rank {rank} called hvd.join() while others went on: give all ranks equally many batches, or"
                " have those without data call step() without a backward pass as often as the others"
            )
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


def find_void(
    slots: Sequence[Slot],
    cleared: Sequence[int],
    codes: Sequence[RoundCode],
    transport: Transport,
    *,
    sent: Mapping[Slot, torch.Tensor | None],
    late: dict[Slot, torch.Tensor],
) -> list[Slot]:
    """Return the gradients whose sums are invalid because a rank had cleared its own; restore contributions.

    Every rank must call it.

    Parameters
    ----------
    cleared
        The numbers of the slots that this rank cleared after their groups may have been sent.
    codes
        All ranks' descriptions of the round.
    sent
        This rank's contributions, with a copy of those that it kept.
    late
        What this rank sends in the next turn. Its contributions to invalid sums are added.

    Raises
    ------
    InvalidUse
        On every rank, if a rank has contributed to such a sum and did not keep its contribution.
    """
    void = set(cleared)
    lost = [
        number
        for number, slot in enumerate(slots)
        if slot in sent and sent[slot] is None and number not in void
    ]
    replies = [json.loads(each) for each in transport.gather(json.dumps([list(cleared), lost]).encode())]
    found = sorted(set().union(*(each[0] for each in replies)))
    for rank, (_, gone) in enumerate(replies):
        if both := set(found).intersection(gone):
            first = min(both)
            name = slots[first].name
            if not (codes[rank].read or codes[rank].idle):
                clearing = next(other for other, (there, _) in enumerate(replies) if first in there)
                raise InvalidUse(
                    f"rank {clearing} cleared the gradient of {name} between two backward passes of a step, "
                    f"and rank {rank} ran only one: let all ranks skip a step(), or none"
                )
            did = "reads it" if codes[rank].read else "did not run the last backward pass"
            raise InvalidUse(
                f"the gradient of {name} was cleared on some ranks but not on rank {rank}, which {did}:"
                " before gradients are cleared, read them on every rank or call step()"
            )
    for number in found:
        slot = slots[number]
        kept = sent.get(slot)
        if number not in void and kept is not None:
            late[slot] = kept + late[slot] if slot in late else kept
    return [slots[number] for number in found]
