"""Limits on bodies in transfer, of requests and answers: number and bytes, in total and of each tenant."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager

from pace.api.errors import QueueFull
from pace.api.fairness.tenants import Tenants

_BULK_PAUSES = 2.0


class BodyLimits:
    """Counts bodies and their bytes: of requests until they have been parsed, of answers until they are sent.

    Parameters
    ----------
    most_bytes
        In total; a single body is always accepted.
    tenants
        How many bodies and bytes each tenant may have.
    """

    def __init__(self, most_bytes: int, tenants: Tenants) -> None:
        self._most_bytes = most_bytes
        self._tenants = tenants
        self._held: Counter[str] = Counter()
        self._bodies: Counter[str] = Counter()
        self._bulk = asyncio.Lock()
        # How many answers send the same bytes of a tenant, and what counts these bytes once.
        self._sent: dict[tuple[str, int], tuple[int, ExitStack]] = {}

    @contextmanager
    def answer(self, tenant: str, content: bytes) -> Iterator[None]:
        """Count an answer inside the context; answers that send the same bytes object count once.

        Raises
        ------
        QueueFull
            If the tenant has too many other bodies in transfer, or too many bytes of them are.
        """
        key = tenant, id(content)
        number, counted = self._sent.get(key, (0, ExitStack()))
        if not number:
            with ExitStack() as opening:
                opening.enter_context(self.body(tenant)).grow(len(content))
                counted = opening.pop_all()
        self._sent[key] = number + 1, counted
        try:
            yield
        finally:
            number, _ = self._sent.pop(key)
            if number > 1:
                self._sent[key] = number - 1, counted
            else:
                counted.close()

    @contextmanager
    def body(self, tenant: str) -> "Iterator[HeldBody]":
        """Count a body of a tenant inside the context.

        Raises
        ------
        QueueFull
            If the tenant sends as many bodies as it may.
        """
        if self._bodies[tenant] >= self._tenants.limits(tenant).max_bodies:
            raise QueueFull(
                f"{self._bodies[tenant]} of your bodies are in transfer, as many as a tenant may have at "
                "once; try again when one is done"
            )
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
        """Take received bytes of a large body inside the context: one body at a time, with pauses in between.

        Otherwise each of many large bodies would take a part of every turn of the event loop, and a small
        request needs a dozen turns. Bytes that are not taken wait at their sender.
        """
        async with self._bulk:
            began_s = time.perf_counter()
            try:
                yield
            finally:
                # Once for this work, and once for the server's own work on the same bytes.
                await asyncio.sleep(_BULK_PAUSES * (time.perf_counter() - began_s))

    def take(self, tenant: str, size_bytes: int, *, already: int) -> None:
        """Count more bytes of a body that has `already` some.

        Raises
        ------
        QueueFull
            If they exceed a limit together with other bodies, the tenant's or all.
        """
        others = self._held[tenant] - already
        if others and self._held[tenant] + size_bytes > self._tenants.limits(tenant).max_bodies_bytes:
            raise QueueFull(
                f"your bodies in transfer hold {self._held[tenant]} bytes; try again when one is done"
            )
        if self._held.total() > already and self._held.total() + size_bytes > self._most_bytes:
            raise QueueFull(f"bodies in transfer hold {self._held.total()} bytes; try again later")
        self._held[tenant] += size_bytes


class HeldBody:
    """A body that is counted."""

    def __init__(self, room: BodyLimits, tenant: str) -> None:
        self._room = room
        self._tenant = tenant
        self.size_bytes = 0

    def bulk(self) -> AbstractAsyncContextManager[None]:
        """As ``BodyLimits.bulk``."""
        return self._room.bulk()

    def grow(self, size_bytes: int) -> None:
        """Count more bytes; raises QueueFull beyond a limit."""
        self._room.take(self._tenant, size_bytes, already=self.size_bytes)
        self.size_bytes += size_bytes
