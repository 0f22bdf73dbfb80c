"""Shares the event loop: when it is busy, requests of the tenant that uses it most wait.

One thread answers all requests. A tenant that sends many cheap requests would take part of every turn of the
loop, and other requests need a dozen turns each. The time that each tenant's requests take is therefore
measured. While the loop is more than half busy and several tenants send requests, new requests of the tenant
that used most start one at a time. A single tenant never waits.

Time of database threads counts, too: Python runs one thread at a time, so the loop waits for them.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

from pace.api.fairness.tenants import Tenants

# A loop that is half busy delays a request by half a request's time on average (M/D/1).
_MOST_BUSY = 0.5
# Time constant: work this long ago counts 1/e.
_MEMORY_S = 0.25
_MOST_TENANTS = 10_000
_FORGOTTEN = 1e-6
_TICK_S = 1e-4
_INSTALMENT_S = 0.005
_METER = "pace.meter"

Scope = MutableMapping[str, Any]
_CURRENT: "ContextVar[RequestMeter | None]" = ContextVar("pace_request_meter", default=None)


def current_meter() -> "RequestMeter | None":
    """Return the meter of the current request; None if requests are not measured."""
    return _CURRENT.get()


class LoopShares:
    """Each tenant's recent share of the event loop's time.

    Parameters
    ----------
    tenants
        Weights of tenants: one of weight 3 may use as much as three of weight 1.
    observe
        Called with the seconds that a delayed request waited.
    now
        A clock, in seconds.
    """

    def __init__(
        self,
        tenants: Tenants,
        observe: Callable[[float], None] = lambda _: None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._tenants = tenants
        self._observe = observe
        self._now = now
        # Seconds, as of `_since_s`: all decay equally, so later seconds are scaled up instead.
        self._used: dict[str, float] = {}
        self._total = 0.0
        self._since_s = now()
        # Mean time of a tenant's requests: charged when a request starts, corrected when it ends.
        self._typical_s: dict[str, float] = {}
        # Work of threads: they append it, and the loop charges it.
        self._from_threads: deque[tuple[RequestMeter, float]] = deque()
        self._queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def turn(self, scope: Scope, tenant: str) -> None:
        """Wait until a request of a tenant may continue; its time is charged to the tenant from then on."""
        if not self.is_open(tenant):
            began_s = self._now()
            queue = self._queues.setdefault(tenant, asyncio.Lock())
            async with queue:
                while (pause_s := self._pause_s(tenant)) > 0:
                    await asyncio.sleep(pause_s)
                self._begin(scope, tenant)
            self._observe(self._now() - began_s)
        else:
            self._begin(scope, tenant)

    def is_open(self, tenant: str) -> bool:
        """Whether a tenant's next request may start at once."""
        return tenant not in self._queues and self._pause_s(tenant) <= 0

    def charge(self, tenant: str, seconds: float) -> None:
        """Count a request that was answered at once, without ``turn`` and ``measure``."""
        self._count(tenant, seconds, 0.0)

    def _begin(self, scope: Scope, tenant: str) -> None:
        meter = scope.get(_METER)
        if meter is not None:
            meter.tenant, meter.paid_s = tenant, self._typical_s.get(tenant, 0.0)
            self._charge(tenant, meter.paid_s)

    async def measure(self, scope: Scope, handled: Awaitable[None]) -> None:
        """Await the handler of a request and measure its time on the loop."""
        meter = scope[_METER] = RequestMeter(handled, self._charge, self._from_threads)
        before = _CURRENT.set(meter)
        try:
            await meter
        finally:
            _CURRENT.reset(before)
            self._charge_threads()
            meter.ended = True
            if meter.tenant is not None:
                self._count(meter.tenant, meter.seconds, meter.paid_s)

    def _count(self, tenant: str, seconds: float, paid_s: float) -> None:
        self._charge(tenant, seconds - paid_s)
        typical_s = self._typical_s.get(tenant, seconds)
        if len(self._typical_s) > _MOST_TENANTS:
            self._typical_s.clear()
        self._typical_s[tenant] = typical_s + (seconds - typical_s) / 8

    def _charge_threads(self) -> None:
        while self._from_threads:
            meter, seconds = self._from_threads.popleft()
            meter.add(seconds)

    def _charge(self, tenant: str, seconds: float) -> None:
        passed_s = self._now() - self._since_s
        if passed_s > _MEMORY_S * math.log(1 / _FORGOTTEN):
            self._rescale(passed_s)
            passed_s = 0.0
        scaled = seconds * math.exp(passed_s / _MEMORY_S)
        self._used[tenant] = self._used.get(tenant, 0.0) + scaled
        self._total += scaled

    def _rescale(self, passed_s: float) -> None:
        fade = math.exp(-passed_s / _MEMORY_S)
        self._used = {name: left for name, used in self._used.items() if (left := used * fade) > _FORGOTTEN}
        self._total = sum(self._used.values())
        self._since_s += passed_s

    def _pause_s(self, tenant: str) -> float:
        """Return the seconds that a tenant's next request must wait until the loop is half free."""
        self._charge_threads()
        if len(self._used) < 2:
            return 0.0
        busy = self._total / _MEMORY_S * math.exp((self._since_s - self._now()) / _MEMORY_S)
        if busy <= _MOST_BUSY or self._weighted(tenant) < max(map(self._weighted, self._used)):
            return 0.0
        return _MEMORY_S * math.log(busy / _MOST_BUSY) + _TICK_S

    def _weighted(self, tenant: str) -> float:
        return self._used.get(tenant, 0.0) / self._tenants.weight(tenant)


class RequestMeter:
    """Awaits the handler of a request and measures the seconds that it uses of the loop.

    Long work (a large body, a stream of events) is charged while it runs.

    Attributes
    ----------
    ended
        Whether the request is answered. Later work of threads for it is charged when it ends.
    """

    def __init__(
        self,
        handled: Awaitable[None],
        charge: Callable[[str, float], None],
        from_threads: "deque[tuple[RequestMeter, float]]",
    ) -> None:
        self._handled: Any = handled.__await__()
        self._charge = charge
        self._from_threads = from_threads
        self.seconds = 0.0
        self.tenant: str | None = None
        self.paid_s = 0.0
        self.ended = False

    def add(self, seconds: float) -> None:
        """Count time that the request took elsewhere than in its own coroutine."""
        self.seconds += seconds
        if not self.ended:
            self._pay()
        elif self.tenant is not None:
            self._charge(self.tenant, seconds)

    def add_from_thread(self, seconds: float) -> None:
        """Count time that a thread worked for the request; called in that thread."""
        self._from_threads.append((self, seconds))

    def _pay(self) -> None:
        if self.tenant is not None and self.seconds > self.paid_s + _INSTALMENT_S:
            self._charge(self.tenant, self.seconds - self.paid_s)
            self.paid_s = self.seconds

    def __await__(self) -> Generator[Any, Any, None]:
        step, argument = self._handled.send, None
        while True:
            began_s = time.perf_counter()
            try:
                awaited = step(argument)
            except StopIteration:
                return
            finally:
                self.seconds += time.perf_counter() - began_s
                self._pay()
            try:
                argument = yield awaited
                step = self._handled.send
            except BaseException as error:  # a cancellation, mostly: for the coroutine
                step, argument = self._handled.throw, error
