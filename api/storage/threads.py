"""Threads that wait for the database, apart from all others: a database that hangs holds up nothing else.

What they compute counts as the time of the request that they work for.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from pace.api.errors import StorageTimeout
from pace.api.fairness.loop_shares import RequestMeter, current_meter

P = ParamSpec("P")
T = TypeVar("T")

_NUM_THREADS = 24
_MOST_WAITING = 2000


class DatabaseThreads:
    """Calls functions that wait for the database, or for something else that stores.

    Parameters
    ----------
    timeout_s
        Callers wait no longer; what hangs goes on hanging in its thread.
    observe
        Is told, in any thread, how many seconds each call took once it had a thread.
    name
        Of what is waited for, in messages.
    opened
        Whether calls are taken at once; else after ``open``.
    """

    def __init__(
        self,
        timeout_s: float,
        observe: Callable[[float], None] = lambda _: None,
        name: str = "the database",
        *,
        opened: bool = True,
    ) -> None:
        self._opened = opened
        self.timeout_s = timeout_s
        self._name = name
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="pace-database")
        self._num_waiting = 0
        self._observe = observe

    async def run(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Return what a function returns, if it does so in time.

        Raises
        ------
        StorageTimeout
            If it does not, or far too many wait already.
        """
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self.run_to_the_end(function, *arguments, **named)
        except TimeoutError:
            raise StorageTimeout(f"{self._name} did not answer in {self.timeout_s:g} s") from None

    async def run_to_the_end(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Return what a function returns, however long it takes.

        Raises
        ------
        StorageTimeout
            If too many wait, or before ``open``.
        """
        if not self._opened:
            raise StorageTimeout(f"{self._name} does not answer; ask again later")
        if self._num_waiting >= _MOST_WAITING:
            raise StorageTimeout(f"{self._num_waiting} requests wait for {self._name} already")
        self._num_waiting += 1
        try:
            call = partial(self._timed, partial(function, *arguments, **named), current_meter())
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        finally:
            self._num_waiting -= 1

    def open(self) -> None:
        """Take calls: there is something to call."""
        self._opened = True

    @property
    def num_waiting(self) -> int:
        """How many calls wait for a thread or for the database."""
        return self._num_waiting

    def _timed(self, call: Callable[[], T], meter: RequestMeter | None) -> T:
        started_s, busy_before_s = time.perf_counter(), time.thread_time()
        try:
            return call()
        finally:
            self._observe(time.perf_counter() - started_s)
            if meter is not None:
                meter.add_from_thread(time.thread_time() - busy_before_s)

    def close(self) -> None:
        """Start nothing more; what hangs is left behind."""
        self._threads.shutdown(wait=False, cancel_futures=True)
