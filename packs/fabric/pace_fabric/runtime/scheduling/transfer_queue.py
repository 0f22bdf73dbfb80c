"""Transfers in order of precedence: who may send now, and how fast. Knows hosts' links, no updates.

A transfer starts when those that it waits for have arrived, and when earlier ones leave something of both of
its links; how much they leave is how fast it may be. One that is about to end leaves its links to the next,
so that they do not idle while messages travel. Planned times never start anything.
"""

import secrets
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pace_fabric.runtime.messages import Message
from pace_fabric.runtime.scheduling.link_rates import Direction, NetworkState, SeenTransfer
from pace_fabric.solver.capacity import Capacities

# Less than this share of a link is left to the next transfer's turn; a stopped sender keeps as much.
_LEAST_SHARE = 0.05
_LEAST_RATE = 1e5
# How long before its end a transfer leaves its links to the next, and which share of its time at most.
_HANDOVER_S = 0.03
_HANDOVER_SHARE = 0.1
# How much of a transfer's lateness is expected of the next ones, and the most lateness that one may tell.
_LEARNED, _MOST_LATE_S = 0.05, 0.1


@dataclass(slots=True, kw_only=True, eq=False)
class QueuedTransfer:
    """A transfer that waits or is under way.

    Attributes
    ----------
    after
        Transfers that must have arrived before.
    prepare
        What the source is told just before it sends: to add, for example.
    on_end
        Called once, with whether it has arrived.
    rate
        What it may send at most, with all others between the same hosts; None while nobody shares its links.
    received_bytes, heard_s
        How much of it had arrived when the receiver said so last, or when it began.
    seen_rate
        Bytes per second that the receiver saw last; None before.
    most
        The least of its rates since `heard_s`.
    """

    number: int
    source: str
    target: str
    key: str
    size_bytes: int
    precedence: tuple[int, int]
    planned_s: float
    on_end: Callable[[bool], None]
    after: set[int] = field(default_factory=set)
    prepare: tuple[Message, ...] = ()
    once: bool = False
    purpose: str = "update"
    began_s: float | None = None
    rate: float | None = None
    received_bytes: int = 0
    heard_s: float = 0.0
    seen_rate: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    source: str
    target: str
    began_s: float
    ended_s: float
    rate: float


class TransferQueue:
    """All transfers that have not arrived.

    Parameters
    ----------
    start
        Has a transfer sent, at most at its rate.
    pace
        Changes the rate of one that is under way.
    """

    def __init__(
        self,
        state: NetworkState,
        start: Callable[[QueuedTransfer], None],
        pace: Callable[[QueuedTransfer], None],
    ) -> None:
        self._state = state
        self._start, self._pace = start, pace
        self._transfers: dict[int, QueuedTransfer] = {}
        self._ended: deque[_Ended] = deque(maxlen=64)
        self._late_s = 0.0  # by how much transfers end after their planned times: messages, first packets
        # Notices of an earlier scheduler's transfers must not be taken for those of this one's.
        self.numbers = secrets.randbelow(1 << 31)

    def __len__(self) -> int:
        return len(self._transfers)

    def __iter__(self) -> Iterator[QueuedTransfer]:
        return iter(sorted(self._transfers.values(), key=lambda transfer: transfer.precedence))

    def submit(
        self,
        source: str,
        target: str,
        key: str,
        size_bytes: int,
        on_end: Callable[[bool], None],
        *,
        urgency: int = 1,
        planned_s: float = 0.0,
        after: tuple[int, ...] = (),
        prepare: tuple[Message, ...] = (),
        once: bool = False,
        purpose: str = "update",
    ) -> int:
        """Put a transfer behind all that are as urgent, and return its number."""
        self.numbers += 1
        self._transfers[self.numbers] = QueuedTransfer(
            number=self.numbers,
            source=source,
            target=target,
            key=key,
            size_bytes=size_bytes,
            precedence=(urgency, self.numbers),
            planned_s=planned_s + self._late_s if planned_s else 0.0,
            on_end=on_end,
            after={number for number in after if number in self._transfers},
            prepare=prepare,
            once=once,
            purpose=purpose,
        )
        return self.numbers

    def hear(self, number: int, received_bytes: int, recent_bytes: int, seconds: float, now_s: float) -> None:
        """Take in how much of a transfer has arrived: `recent_bytes` in the last `seconds`."""
        transfer = self._transfers.get(number)
        if transfer is None or transfer.began_s is None:
            return
        begin_s = now_s - seconds
        self._state.observe(
            SeenTransfer(
                source=transfer.source,
                target=transfer.target,
                size_bytes=recent_bytes,
                seconds=seconds,
                waited_s=now_s - transfer.heard_s,
                other_up=self._others(transfer, "up", begin_s, now_s),
                other_down=self._others(transfer, "down", begin_s, now_s),
                most=transfer.most,
            ),
            now_s,
        )
        transfer.received_bytes, transfer.heard_s, transfer.most = received_bytes, now_s, transfer.rate
        if seconds > 0:
            transfer.seen_rate = recent_bytes / seconds

    def _others(self, transfer: QueuedTransfer, direction: Direction, begin_s: float, end_s: float) -> float:
        """Return the mean rate of other transfers over one of a transfer's links, in some time."""
        end = transfer.source if direction == "up" else transfer.target
        total = 0.0
        for other in self._transfers.values():
            if other is not transfer and other.began_s is not None and _end_of(other, direction) == end:
                together = max(end_s - max(other.began_s, begin_s), 0.0)
                total += together * (
                    self._believed(other, end_s) if other.seen_rate is None else other.seen_rate
                )
        for ended in self._ended:
            if _end_of(ended, direction) == end:
                total += max(min(ended.ended_s, end_s) - max(ended.began_s, begin_s), 0.0) * ended.rate
        return total / (end_s - begin_s) if end_s > begin_s else 0.0

    def _believed(self, transfer: QueuedTransfer, now_s: float) -> float:
        """Return how fast a transfer is expected to be."""
        up, down = self._state.rates(transfer.source, now_s)[0], self._state.rates(transfer.target, now_s)[1]
        return min(up, down) if transfer.rate is None else min(up, down, transfer.rate)

    def _rest_bytes(self, transfer: QueuedTransfer, now_s: float) -> float:
        """Return how much of a transfer is expected to be still to come."""
        rest = float(transfer.size_bytes)
        if transfer.began_s is not None:
            since = self._believed(transfer, now_s) * (now_s - transfer.heard_s)
            rest = max(rest - transfer.received_bytes - since, 0.0)
        return rest

    def _handover_s(self, transfer: QueuedTransfer, now_s: float) -> float:
        """Return in how long a transfer that began leaves its links to the next one."""
        rate = self._believed(transfer, now_s)
        early = min(_HANDOVER_S, _HANDOVER_SHARE * transfer.size_bytes / rate)
        return self._rest_bytes(transfer, now_s) / rate - early

    def next_handover_s(self, now_s: float) -> float:
        """Return in how long the next transfer under way leaves its links to another, if one does."""
        begun = (t for t in self._transfers.values() if t.began_s is not None)
        left = (self._handover_s(transfer, now_s) for transfer in begun)
        return min((seconds for seconds in left if seconds > 0), default=float("inf"))

    def arrive(self, number: int) -> QueuedTransfer | None:
        """Take a transfer out that has arrived; None if nobody waits for it."""
        transfer = self._transfers.pop(number, None)
        if transfer is not None:
            if transfer.began_s is not None and transfer.seen_rate is not None:
                ends = transfer.source, transfer.target
                self._ended.append(_Ended(*ends, transfer.began_s, transfer.heard_s, transfer.seen_rate))
            if transfer.planned_s and transfer.began_s is not None:
                late_s = transfer.heard_s - transfer.planned_s
                self._late_s += _LEARNED * max(min(late_s, _MOST_LATE_S), -_MOST_LATE_S)
                self._late_s = max(self._late_s, 0.0)
            for other in self._transfers.values():
                other.after.discard(number)
            transfer.on_end(True)
        return transfer

    def fail(self, number: int) -> None:
        """Take a transfer out that will not arrive, with all that wait for it."""
        transfer = self._transfers.pop(number, None)
        if transfer is None:
            return
        for other in [each.number for each in self._transfers.values() if number in each.after]:
            self.fail(other)
        transfer.on_end(False)

    def lose(self, host: str) -> None:
        """Fail all transfers from and to a host."""
        for number in [t.number for t in self._transfers.values() if host in (t.source, t.target)]:
            self.fail(number)

    def idle(self, host: str, direction: Direction) -> bool:
        """Return whether nothing is under way over a link."""
        return not any(
            transfer.began_s is not None and _end_of(transfer, direction) == host
            for transfer in self._transfers.values()
        )

    def pump(self, now_s: float) -> None:
        """Start what may start, and give every sender its rate."""
        left: dict[tuple[str, str], float] = {}
        pairs: dict[tuple[str, str], list[QueuedTransfer]] = {}
        allowed: dict[int, float | None] = {}
        for transfer in self:
            if transfer.number not in self._transfers or (transfer.began_s is None and transfer.after):
                continue
            if transfer.source == transfer.target:
                self.arrive(transfer.number)
                continue
            if transfer.began_s is not None and self._handover_s(transfer, now_s) <= 0:
                allowed[transfer.number] = transfer.rate
                pairs.setdefault((transfer.source, transfer.target), []).append(transfer)
                continue
            ends = ((transfer.source, "up"), (transfer.target, "down"))
            whole = (
                self._state.rates(transfer.source, now_s)[0],
                self._state.rates(transfer.target, now_s)[1],
            )
            rate: float | None = None
            for end, all_of_it in zip(ends, whole, strict=True):
                if end in left:
                    rest = left[end] if left[end] >= _LEAST_SHARE * all_of_it else 0.0
                    rate = rest if rate is None else min(rate, rest)
            if rate == 0.0 and transfer.began_s is None:
                continue
            taken = min(
                *whole, *(left.get(end, all_of_it) for end, all_of_it in zip(ends, whole, strict=True))
            )
            for end, all_of_it in zip(ends, whole, strict=True):
                left[end] = max(left.get(end, all_of_it) - taken, 0.0)
            allowed[transfer.number] = None if rate is None else max(rate, _LEAST_RATE)
            pairs.setdefault((transfer.source, transfer.target), []).append(transfer)
        for both_hosts in pairs.values():
            together = [transfer for transfer in both_hosts if transfer.number in self._transfers]
            self._give(together, [allowed[transfer.number] for transfer in together], now_s)

    def _give(self, together: list[QueuedTransfer], rates: list[float | None], now_s: float) -> None:
        """Give transfers between the same hosts their rate: one connection carries them in turn."""
        known = [rate for rate in rates if rate is not None]
        rate = sum(known) if len(known) == len(rates) else None
        changed = any(transfer.began_s is not None and transfer.rate != rate for transfer in together)
        for transfer in together:
            transfer.rate = rate
            if rate is not None:
                transfer.most = rate if transfer.most is None else min(transfer.most, rate)
            if transfer.began_s is None:
                transfer.began_s = transfer.heard_s = now_s
                self._start(transfer)
                changed = False  # its order says the rate
        if changed:
            self._pace(together[0])

    def book(self, view: Capacities, number_of: dict[str, int], now_s: float) -> None:
        """Subtract from a view that begins now what these transfers are expected to need still."""
        for transfer in self:
            if transfer.source not in number_of or transfer.target not in number_of:
                continue
            source, target = number_of[transfer.source], number_of[transfer.target]
            view.reserve(source, target, max(self._rest_bytes(transfer, now_s), 0.02 * transfer.size_bytes))


def _end_of(transfer: QueuedTransfer | _Ended, direction: Direction) -> str:
    return transfer.source if direction == "up" else transfer.target
