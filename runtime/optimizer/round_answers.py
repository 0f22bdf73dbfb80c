"""Answers to a rank that waits for a round while this rank waits in a collective of user code."""

import contextlib
from abc import abstractmethod

from pace.errors import PaceError
from pace.runtime.gates.call_stacks import in_collective
from pace.runtime.optimizer.pending_updates import PendingUpdates
from pace.runtime.optimizer.round_settings import Profiling
from pace.runtime.transports.transport import Transport


class RoundAnswers(PendingUpdates):
    """The part of ``Rounds`` that seals a round in another thread, on behalf of a rank that asks for it."""

    _transport: Transport
    _profiling: Profiling
    _thread: int
    _num_arrived: int
    _asked: tuple[int, int, bool]
    _answering: bool
    accumulating: bool
    closed: bool

    @abstractmethod
    def seal(self, *, read: bool) -> None:
        """Make this rank's contribution final."""

    def answer(self, turn: int) -> bool:
        """Seal the round for another rank that waits for it, if this rank waits in a collective of user code.

        The rank that asks reads gradients that the other ranks do not read, and comes to that collective
        later. So every rank that waits there has computed all gradients of the round. Another thread calls
        this repeatedly. It acts when nothing has changed between two calls.

        Returns
        -------
        bool
            Whether the round was sealed.
        """
        before, self._asked = self._asked, (turn, self._num_arrived, in_collective(self._thread))
        if before != (now := self._asked) or not now[-1] or self.reduction.turn >= turn or self._busy():
            return False
        if not self._lock.acquire(timeout=0.1):
            return False
        try:
            self._answering = True
            # From here on the training thread waits before it uses any gradient.
            unchanged = (turn, self._num_arrived, in_collective(self._thread)) == now
            if not unchanged or self.reduction.sealed or self._busy():
                return False
            device = self._transport.device
            with contextlib.nullcontext() if device is None else device.in_noted_queue():
                self.seal(read=False)
                self.reduction.unread = True
                # Another turn may follow, in which the asking rank needs this rank too.
                with contextlib.suppress(PaceError):  # the training thread will raise it
                    self.reduction.resolve_all()
        finally:
            self._answering = False
            self._lock.release()
        return True

    def await_answer(self) -> None:
        """Wait until an answer that another thread gives for this rank is finished."""
        if self._answering:
            with self._lock:
                pass

    def _busy(self) -> bool:
        return self.accumulating or self.closed or self._profiling.aside is not None
