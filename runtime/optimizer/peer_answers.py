"""What a wrapper tells other ranks of its progress and failures, and does when they ask for something."""

from typing import Any

from pace.errors import CommunicationFailed
from pace.runtime.event_log import log
from pace.runtime.optimizer.shards.norm_and_state import NormAndState
from pace.runtime.transports.liveness.peers import Peers


class PeerAnswers(NormAndState):
    """The part of the wrapper that talks with other ranks through the peer store, if there is one."""

    _peers: Peers | None

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
