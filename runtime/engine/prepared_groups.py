"""Groups whose buffers are filled in the background as soon as the groups that they need are done.

In a sharded plan, the gather of updated parameters needs the sums of some reduce-scatters, and then the
update. Neither the training thread, which computes the next forward pass, nor the engine's thread, which
sends, waits for them.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pace.runtime.engine.sends import GroupSend
from pace.runtime.transports.torch_threads import torch_thread


class _Prepared(NamedTuple):
    send: GroupSend
    after: Sequence[GroupSend]
    prepare: Callable[[], None]


class PreparedGroups:
    """Fills groups in its own thread, each once the groups that it needs are done.

    Parameters
    ----------
    lock
        The engine's lock.
    enter
        Called with each filled group, with the lock held.
    failed
        Called with the error of filling a group. The thread then ends.
    stopped
        Returns whether nothing will be sent any more; called with the lock held.
    """

    def __init__(
        self,
        lock: threading.Lock,
        *,
        enter: Callable[[GroupSend], None],
        failed: Callable[[GroupSend, BaseException], None],
        stopped: Callable[[], bool],
        name: str,
    ) -> None:
        self._lock = lock
        self._wake = threading.Condition(lock)
        self._enter = enter
        self._failed = failed
        self._stopped = stopped
        self._name = name
        self._waiting: list[_Prepared] = []
        self._preparing = False
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to fill; call it with the lock held."""
        return not self._waiting and not self._preparing

    def add(self, send: GroupSend, after: Sequence[GroupSend], prepare: Callable[[], None]) -> None:
        """Fill a group and enter it once the groups in `after` are done; call it with the lock held."""
        self._waiting.append(_Prepared(send, after, prepare))
        if self._thread is None:
            self._thread = torch_thread(self._run, name=self._name)
            self._thread.start()
        self._wake.notify()

    def notify(self) -> None:
        """Check again, because a group is done or sending has stopped; call it with the lock held."""
        self._wake.notify()

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            try:
                entry.prepare()
            except Exception as error:  # any error is passed on to waiting threads
                self._failed(entry.send, error)
                return
            with self._lock:
                self._preparing = False
                if not self._stopped():
                    entry.send.submitted_s = time.perf_counter()
                    self._enter(entry.send)
            del entry

    def _next(self) -> _Prepared | None:
        with self._lock:
            while not self._stopped():
                for number, entry in enumerate(self._waiting):
                    if all(send.done.is_set() for send in entry.after):
                        self._preparing = True
                        return self._waiting.pop(number)
                self._wake.wait()
            return None

    def close(self, *, failed: bool) -> None:
        """End the thread once sending has stopped; after a failure it may be left running."""
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout=1.0 if failed else None)
