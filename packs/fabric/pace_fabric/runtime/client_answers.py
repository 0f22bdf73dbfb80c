"""What a worker's calls wait for: the end of an update, a model, or the daemon's answer."""

import threading
from dataclasses import dataclass
from typing import Literal

from pace.errors import CommunicationFailed
from pace_fabric.runtime.commit_log import Vector
from pace_fabric.runtime.connection import Incoming
from pace_fabric.runtime.messages import GroupAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketEnd:
    """How an update ended.

    Attributes
    ----------
    outcome
        "committed", "dropped" (late; not sent again) or "failed" (the fabric could not).
    version
        Version of the model just after the commit, if there was one.
    delay
        Commits between the model that it was computed from and its own.
    reason, witness
        Why it was dropped or failed, and the updates that are why.
    """

    outcome: Literal["committed", "dropped", "failed"]
    version: int | None = None
    delay: int | None = None
    reason: str = ""
    witness: tuple[str, ...] = ()


class UpdateTicket:
    """An update under way. The daemon keeps a copy: its memory may be used again at once."""

    def __init__(self, update: str, timeout_s: float) -> None:
        self.update = update
        self._timeout_s = timeout_s
        self._ended = threading.Event()
        self._end: TicketEnd | None = None

    @property
    def done(self) -> bool:
        """Whether the update has ended."""
        return self._ended.is_set()

    def finish(self, end: TicketEnd) -> None:
        """End it; the first end counts."""
        if self._end is None:
            self._end = end
            self._ended.set()

    def wait(self, timeout_s: float | None = None) -> TicketEnd:
        """Wait for the end.

        Raises
        ------
        CommunicationFailed
            When there is none in time; the update may still be committed.
        """
        limit = self._timeout_s if timeout_s is None else timeout_s
        if not self._ended.wait(limit):
            raise CommunicationFailed(
                f"update {self.update} is neither committed nor dropped after {limit:g} s"
            )
        assert self._end is not None
        return self._end


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as the server had it.

    Attributes
    ----------
    version
        What updates computed from it are pushed with.
    weights
        float32, one row.
    """

    version: int
    weights: Vector


class DaemonAnswer:
    """What a call waits for: a tensor, a word on a group, or the reason why there is neither."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.incoming: Incoming | None = None
        self.group: GroupAnswer | None = None
        self.reason = ""
