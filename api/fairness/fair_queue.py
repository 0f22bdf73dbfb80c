"""A queue that shares a limited number of places fairly among tenants."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from pace.api.errors import QueueFull


class FairQueue:
    """Gives a free place to the tenant that holds the fewest, then to the one that used places least.

    Both counts are divided by the tenant's weight: if two tenants always have work, one of weight 3 gets
    three times the time of one of weight 1.

    Parameters
    ----------
    what
        Plural name of what waits, for messages.
    places
        How many may run at once.
    most_waiting
        Largest number that waits; of one tenant, half as many.
    weight
        Returns the weight of a tenant.
    observe
        Called with the seconds that each waited for its place.
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
        # With more than one place, one is kept for small work.
        self._free_for_large = max(1, places - 1)
        self._most_waiting = most_waiting
        self._weight = weight
        self._observe = observe
        self._most_of_tenant = max(1, most_waiting // 2)
        self._waiting: dict[str, tuple[deque[asyncio.Future[None]], deque[asyncio.Future[None]]]] = {}
        self._running: Counter[str] = Counter()
        # Seconds used by each present tenant, divided by its weight; a new tenant starts with the least of
        # them.
        self._used_s: dict[str, float] = {}

    @property
    def num_waiting(self) -> int:
        """Number of waiting, of all tenants."""
        return sum(len(queue) for queues in self._waiting.values() for queue in queues)

    @asynccontextmanager
    async def turn(self, tenant: str, *, large: bool = False) -> AsyncIterator[None]:
        """Wait for a place and hold it inside the context.

        Raises
        ------
        QueueFull
            If too many wait.
        """
        mine = sum(len(queue) for queue in self._waiting.get(tenant, ()))
        if mine >= self._most_of_tenant or self.num_waiting >= self._most_waiting:
            raise QueueFull(
                f"{mine} of your {self._what} and {self.num_waiting} in all are waiting; try again later"
            )
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
        """Whether a tenant's next one is large; None if none may start now."""
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
