"""Threads for database calls, separate from all others, so that a hung database blocks nothing else.

Their time counts as time of the request for which they work.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import OperationalError

from pace.api.errors import StorageTimeout
from pace.api.fairness.loop_shares import RequestMeter, current_meter

P = ParamSpec("P")
T = TypeVar("T")

_POSTGRESQL_DEADLOCK = "40P01"
_NUM_THREADS = 24
_MOST_WAITING = 2000


class DatabaseThreads:
    """Calls functions that wait for the database, for one transaction each, or for object storage.

    Parameters
    ----------
    timeout_s
        Seconds that a caller waits; a hung call continues in its thread.
    observe
        Called, in any thread, with the seconds of each call, without the wait for a thread.
    name
        Name of the storage, for messages.
    opened
        Whether calls are accepted at once; otherwise after ``open``.
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
        """Call a function and return its result, if it returns in time.

        Raises
        ------
        StorageTimeout
            If it does not return in time, or too many calls wait.
        """
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self.run_to_the_end(function, *arguments, **named)
        except TimeoutError:
            raise StorageTimeout(f"{self._name} did not answer in {self.timeout_s:g} s") from None

    async def run_to_the_end(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a function and return its result, however long it takes.

        Raises
        ------
        StorageTimeout
            If too many calls wait, or before ``open``.
        """
        if not self._opened:
            raise StorageTimeout(f"{self._name} does not answer; ask again later")
        if self._num_waiting >= _MOST_WAITING:
            raise StorageTimeout(
                f"{self._num_waiting} requests wait for {self._name} already; try again later"
            )
        self._num_waiting += 1
        try:
            call = partial(self._timed, partial(function, *arguments, **named), current_meter())
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        finally:
            self._num_waiting -= 1

    def open(self) -> None:
        """Start to accept calls."""
        self._opened = True

    @property
    def num_waiting(self) -> int:
        """Number of calls that wait for a thread or for the database."""
        return self._num_waiting

    def _timed(self, call: Callable[[], T], meter: RequestMeter | None) -> T:
        started_s, busy_before_s = time.perf_counter(), time.thread_time()
        try:
            try:
                return call()
            except OperationalError as error:
                if getattr(error.orig, "sqlstate", None) != _POSTGRESQL_DEADLOCK:
                    raise
                # Two transactions waited for each other, and this one was undone: the other goes on now.
                return call()
        finally:
            self._observe(time.perf_counter() - started_s)
            if meter is not None:
                meter.add_from_thread(time.thread_time() - busy_before_s)

    def close(self) -> None:
        """Accept no more calls; hung calls are abandoned."""
        self._threads.shutdown(wait=False, cancel_futures=True)
