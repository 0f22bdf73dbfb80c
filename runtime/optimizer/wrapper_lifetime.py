"""The end of a wrapper: by ``close``, a fork, the end of the process, or because nothing refers to it.

Other ranks are told of it, and end with this one.
"""

import contextlib
import sys
from abc import abstractmethod
from typing import Any, Self

from torch.utils.hooks import RemovableHandle

from pace.errors import CommunicationFailed
from pace.runtime.control.mode_choice import Choice
from pace.runtime.event_log import log
from pace.runtime.gates.gated_state import ungate_state
from pace.runtime.gates.patches.compiled_code import CompiledWatch
from pace.runtime.optimizer.live_wrappers import WhereMade, live
from pace.runtime.optimizer.poison import Poison
from pace.runtime.optimizer.shards.norm_and_state import NormAndState
from pace.runtime.transports.liveness.peers import Peers

# How long, in seconds, a process that ends without close() waits for its last sums, which other ranks need
# too.
_EXIT_S = 5.0


class WrapperLifetime(NormAndState):
    """The part of the wrapper that finishes or abandons what is in flight, alone or with other ranks."""

    _peers: Peers | None  # None without a peer store
    _choice: Choice
    _poison: Poison | None  # None except in mode="check"
    _compiled: CompiledWatch
    _gating: list[RemovableHandle]
    _made: WhereMade
    _closed: bool
    # Whether this process was forked from the one that trains.
    _forked = False

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until nothing is in flight."""

    def close(self) -> None:
        """Finish what is in flight, then remove all hooks from the model and the optimizer.

        After a failure it does not wait for what is in flight. Idempotent.
        """
        self._close(linger=True)

    def _close(self, *, linger: bool, reason: str | None = None, drain: bool = True) -> None:
        if self._closed:
            return
        failed = self._rounds.engine.failure is not None
        try:
            if drain and not failed:
                self.synchronize()
                if self._poison is not None:
                    self._poison.conclude()
                # With an exception only this rank leaves the loop, so the others would not come to meet it.
                if sys.exc_info()[0] is None and reason is None:
                    self._rounds.hand_back(last=True)
        finally:
            self._closed = True
            failed = self._rounds.engine.failure is not None
            # Each is released, from the last to the first, even if another one fails.
            with contextlib.ExitStack() as releases:
                releases.callback(live.discard, self)
                if self._peers is not None and failed and linger:
                    releases.callback(self._peers.linger)
                releases.callback(self._transport.close, failed=failed)
                releases.callback(self._rounds.close)
                if self._poison is not None:
                    releases.callback(self._poison.close)
                if self._peers is not None:
                    releases.callback(self._peers.close, reason, failed=failed)
                releases.callback(ungate_state, self.optimizer)
                releases.callback(self._compiled.close)
                for hook in self._gating:
                    releases.callback(hook.remove)
                releases.callback(self._choice.close)

    def before_fork(self) -> None:
        """Apply pending updates: a forked process has no thread that would apply them."""
        if not self._closed and self._rounds.engine.failure is None:
            self.finish_updates()

    def after_fork_in_child(self) -> None:
        """In a forked process: change nothing; every call that needs other ranks raises from now on."""
        self._forked = self._closed = True
        self._rounds.disown()
        ungate_state(self.optimizer)

    def end_with_process(self, uncaught: type[BaseException] | None) -> None:
        """Finish or abandon what is in flight when the process ends without ``close``."""
        engine = self._rounds.engine
        raised = uncaught is not None and issubclass(uncaught, Exception)
        if self._peers is not None and engine.failure is None:
            self._peers.close(uncaught.__name__ if uncaught else None)
        if raised or not engine.settle(_EXIT_S if uncaught is None else 0.0):
            engine.abandon()
        # Ranks that wait for this one notice that its connections break, and read the reason in the store of
        # the first rank.
        self._close(linger=raised, drain=False)

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._made.end(self._end_dropped)

    def _end_dropped(self) -> None:
        # Without close(): no code can call step() any more, so only wait for updates that are due.
        try:
            if self._rounds.engine.failure is None:
                self._rounds.finish_all()
                if self._peers is not None:
                    self._peers.close()  # before anything is abandoned, so that no other rank is blamed
        finally:
            self._rounds.engine.abandon()
            self._close(linger=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_raised: object) -> None:
        self._close(linger=True, reason=None if kind is None else kind.__name__)

    # What other ranks ask and are told, through the peer store.

    def _ask(self, turn: int) -> None:
        if self._peers is not None:
            self._peers.ask(turn)

    def _answer(self, turn: int) -> bool:
        return self._rounds.answer(turn)

    def _progress(self) -> dict[str, Any]:
        return {
            "round": self._rounds.number,
            "open": self._rounds.reduction.open,
            "missing": self._rounds.missing()[:20],
            "failed": self._rounds.engine.failure is not None,
        }

    def _report_stall(self, group: int) -> None:
        told = self._peers.explain_stall() if self._peers else "unknown: there is no peer store"
        log.warning("pace.stall", waiting_for=self._rounds.engine.describe(group), peers=told)

    def _fail_with_others(self, told: str) -> None:
        """Abandon what this rank waits for: another rank has failed, for the reason `told`."""
        engine = self._rounds.engine
        if engine.failure is None:
            ranks = f"rank {self._transport.rank} of {self._transport.size}"
            engine.abandon(CommunicationFailed(f"{ranks}: training has ended on another rank: {told}"))

    def _explain_failure(self) -> str:
        return self._peers.explain_failure() if self._peers else ""
