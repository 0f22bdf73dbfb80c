"""Whose turn it is: places in worker processes are shared among tenants, not given to who comes first."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from pace.api.errors import QueueFull


class FairQueue:
    """Gives out places: to the tenant that has the fewest now, then to the one that used them least.

    Both are over the tenant's weight: of two who want all they can get, one of weight 3 has three times the
    time of one of weight 1.

    Parameters
    ----------
    what
        What is waited for, for messages.
    places
        How many may have one at once.
    most_waiting
        More are refused; of one tenant, more than half of these.
    weight
        Of a tenant.
    observe
        Is told how many seconds each waited that got a place.
    """

    def __init__(
        self,
        what: str,
        places: int,
        most_waiting: int,
        weight: Callable[[str], float] = lambda _: 1.0,
        observe: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._what = what
        self._free = places
        # Where there is more than one place, one is for small work.
        self._free_for_large = max(1, places - 1)
        self._most_waiting = most_waiting
        self._weight = weight
        self._observe = observe
        self._most_of_tenant = max(1, most_waiting // 2)
        self._waiting: dict[str, tuple[deque[asyncio.Future[None]], deque[asyncio.Future[None]]]] = {}
        self._running: Counter[str] = Counter()
        # Seconds, over its weight, that each tenant of now has used; the new begin with the least of them.
        self._used_s: dict[str, float] = {}

    @property
    def num_waiting(self) -> int:
        """How many wait, of all tenants."""
        return sum(len(queue) for queues in self._waiting.values() for queue in queues)

    @asynccontextmanager
    async def turn(self, tenant: str, *, large: bool = False) -> AsyncIterator[None]:
        """Wait for a place and have it inside.

        Raises
        ------
        QueueFull
            If too many wait.
        """
        mine = sum(len(queue) for queue in self._waiting.get(tenant, ()))
        if mine >= self._most_of_tenant or self.num_waiting >= self._most_waiting:
            raise QueueFull(f"{mine} {self._what} of yours and {self.num_waiting} in all wait already")
        if tenant not in self._used_s:
            self._used_s[tenant] = min(self._used_s.values(), default=0.0)
        asked_s = time.monotonic()
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, (deque(), deque()))[large].append(place)
        self._give()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._end(tenant, large, 0.0)
            else:
                self._waiting[tenant][large].remove(place)
                self._forget(tenant)
            raise
        began_s = time.monotonic()
        self._observe(began_s - asked_s)
        try:
            yield
        finally:
            self._end(tenant, large, time.monotonic() - began_s)

    def _give(self) -> None:
        while self._free:
            able = [tenant for tenant in self._waiting if self._next_of(tenant) is not None]
            if not able:
                return
            tenant = min(able, key=self._rank)
            large = self._next_of(tenant)
            place = self._waiting[tenant][bool(large)].popleft()
            self._free -= 1
            self._free_for_large -= bool(large)
            self._running[tenant] += 1
            place.set_result(None)

    def _rank(self, tenant: str) -> tuple[float, float]:
        return self._running[tenant] / self._weight(tenant), self._used_s[tenant]

    def _next_of(self, tenant: str) -> bool | None:
        """Whether a tenant's next is large; None if it has none that may go now."""
        small, large = self._waiting[tenant]
        if small:
            return False
        return True if large and self._free_for_large else None

    def _end(self, tenant: str, large: bool, used_s: float) -> None:
        self._free += 1
        self._free_for_large += large
        self._running[tenant] -= 1
        self._used_s[tenant] += used_s / self._weight(tenant)
        self._forget(tenant)
        self._give()

    def _forget(self, tenant: str) -> None:
        if not self._running[tenant] and not any(self._waiting.get(tenant, ())):
            self._waiting.pop(tenant, None)
            del self._running[tenant]
            del self._used_s[tenant]
