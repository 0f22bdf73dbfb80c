"""Transfers in order of precedence: who may send now, and how fast. Knows hosts' links, no updates.

A transfer starts when those that it waits for have arrived, and when earlier ones leave something of both of
its links; how much they leave is how fast it may be. Times are predictions and never start anything.
"""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pace.runtime.fabric.messages import Message
from pace.runtime.fabric.scheduling.link_rates import NetworkState
from pace.solver.fabric.capacity import Capacities

# Less than this share of a link is left to the next transfer's turn; a stopped sender keeps as much.
_LEAST_SHARE = 0.05
_LEAST_RATE = 1e5


@dataclass(slots=True, kw_only=True, eq=False)
class QueuedTransfer:
    """One transfer.

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
    paced
        Whether it had to leave something to others.
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
    paced: bool = False


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
            planned_s=planned_s,
            on_end=on_end,
            after={number for number in after if number in self._transfers},
            prepare=prepare,
            once=once,
            purpose=purpose,
        )
        return self.numbers

    def arrive(self, number: int) -> QueuedTransfer | None:
        """Take a transfer out that has arrived; None if nobody waits for it."""
        transfer = self._transfers.pop(number, None)
        if transfer is not None:
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
            transfer.paced = transfer.paced or rate is not None
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
            if transfer.began_s is None:
                transfer.began_s = now_s
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
            rest = float(transfer.size_bytes)
            if transfer.began_s is not None:
                rate = min(
                    self._state.rates(transfer.source, now_s)[0], self._state.rates(transfer.target, now_s)[1]
                )
                if transfer.rate is not None:
                    rate = min(rate, transfer.rate)
                rest = max(rest - rate * (now_s - transfer.began_s), 0.02 * rest)
            view.reserve(source, target, rest)
