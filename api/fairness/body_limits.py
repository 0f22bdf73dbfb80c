"""Room for bodies that are under way: bounded in total, and for each tenant."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

from pace.api.errors import QueueFull
from pace.api.fairness.tenants import Tenants

_BULK_PAUSES = 2.0


class BodyLimits:
    """Counts bodies, and their bytes, from their first to when they have been read.

    Parameters
    ----------
    most_bytes
        In total; one body goes in any case.
    tenants
        How many bodies and bytes each tenant may have.
    """

    def __init__(self, most_bytes: int, tenants: Tenants) -> None:
        self._most_bytes = most_bytes
        self._tenants = tenants
        self._held: Counter[str] = Counter()
        self._bodies: Counter[str] = Counter()
        self._bulk = asyncio.Lock()

    @contextmanager
    def body(self, tenant: str) -> "Iterator[HeldBody]":
        """Count a body of a tenant, until the end.

        Raises
        ------
        QueueFull
            If it has as many under way as it may.
        """
        if self._bodies[tenant] >= self._tenants.limits(tenant).max_bodies:
            raise QueueFull(f"{self._bodies[tenant]} bodies of yours are under way already")
        held = HeldBody(self, tenant)
        self._bodies[tenant] += 1
        try:
            yield held
        finally:
            for counter, count in ((self._held, held.size_bytes), (self._bodies, 1)):
                counter[tenant] -= count
                if not counter[tenant]:
                    del counter[tenant]

    @asynccontextmanager
    async def bulk(self) -> AsyncIterator[None]:
        """Take what arrived of a large body inside: one body at a time, and then the loop is others' a while.

        Many large bodies at once would have a piece each in every turn of the event loop, and every small
        request needs a dozen of those. What is not taken waits with its sender.
        """
        async with self._bulk:
            began_s = time.perf_counter()
            try:
                yield
            finally:
                # Once for this, and once for the way of the piece through the server.
                await asyncio.sleep(_BULK_PAUSES * (time.perf_counter() - began_s))

    def take(self, tenant: str, size_bytes: int, *, already: int) -> None:
        """Count more bytes of a body that has some `already`.

        Raises
        ------
        QueueFull
            If there is no room for them beside the tenant's other bodies, or everyone's.
        """
        others = self._held[tenant] - already
        if others and self._held[tenant] + size_bytes > self._tenants.limits(tenant).max_bodies_bytes:
            raise QueueFull(f"bodies of yours that are under way hold {self._held[tenant]} bytes already")
        if self._held.total() > already and self._held.total() + size_bytes > self._most_bytes:
            raise QueueFull(f"bodies that are under way hold {self._held.total()} bytes already")
        self._held[tenant] += size_bytes


class HeldBody:
    """One body that is counted."""

    def __init__(self, room: BodyLimits, tenant: str) -> None:
        self._room = room
        self._tenant = tenant
        self.size_bytes = 0

    def bulk(self) -> AbstractAsyncContextManager[None]:
        """As ``BodyLimits.bulk``."""
        return self._room.bulk()

    def grow(self, size_bytes: int) -> None:
        """Count more bytes; raises QueueFull where there is no room."""
        self._room.take(self._tenant, size_bytes, already=self.size_bytes)
        self.size_bytes += size_bytes
