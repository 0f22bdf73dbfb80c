"""Who is alive and how far: what turns "an all-reduce failed" into "rank 3 is gone".

Every rank writes a few words about itself to a shared store, twice a second, from a thread of its own.
Nobody reads them until something stalls or fails.
"""

import json
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

PERIOD_S = 0.5

# A rank that says nothing for so long is silent.
_SILENCE_S = 2.5 * PERIOD_S

# The store itself may be on the rank that is gone: no answer in this time means so.
_ANSWER_S = 1.5

# How long the store's keeper stays for ranks that notice a failure later than itself.
_LINGER_S = 6.0

EVERYTHING_SENT = "every rank has sent all of its groups: the network is slow, or a rank is silent"


class Store(Protocol):
    """The part of torch's key-value stores that is used here."""

    def set(self, key: str, value: str, /) -> None:
        """Write a value."""

    def get(self, key: str, /) -> bytes:
        """Read a value, waiting until there is one."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys have values."""


class Peers:
    """A rank's sign of life, and a look at the others'.

    Parameters
    ----------
    store
        Shared by all ranks, used by no other thread; rank `keeper` keeps it.
    progress
        What this rank says about itself: the round, and the groups it has not submitted in it.
    """

    def __init__(
        self, store: Store, rank: int, size: int, progress: Callable[[], dict[str, Any]], *, keeper: int = 0
    ) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._progress = progress
        self._keeper = keeper
        self._stalled: list[dict[str, Any]] | None = None
        self._stalled_at = 0.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pace.peers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        beat = 0
        while True:
            last = self._stop.wait(PERIOD_S if beat else 0.0)
            beat += 1
            try:
                with self._lock:
                    said = self._progress() | {"beat": beat, "left": last}
                    self._store.set(f"alive/{self._rank}", json.dumps(said))
            except (RuntimeError, OSError):  # the store went with its keeper: others find out as they read
                return
            if last:
                return

    def close(self) -> None:
        """Say goodbye and stop."""
        self._stop.set()
        self._thread.join(timeout=_ANSWER_S)

    def linger(self) -> None:
        """Keep the store until the others have left or fallen silent: they ask it who is at fault.

        Otherwise a keeper that noticed first would be taken for the culprit.
        """
        if self._rank != self._keeper:
            return
        start = time.monotonic()
        seen: dict[int, tuple[int, float]] = {}
        while (now := time.monotonic()) - start < _LINGER_S and (said := self.look()) is not None:
            present = []
            for rank, each in enumerate(said):
                beat, since = seen.get(rank, (-1, now))
                if each["beat"] != beat:
                    beat, since = seen[rank] = each["beat"], now
                if rank != self._rank and not each.get("left") and now - since < _SILENCE_S:
                    present.append(rank)
            if not present:
                return
            time.sleep(0.1)

    def look(self) -> list[dict[str, Any]] | None:
        """Read what every rank last said; None when the store does not answer."""
        found: list[dict[str, Any]] = []

        def read() -> None:
            with self._lock:
                for rank in range(self._size):
                    key = f"alive/{rank}"
                    said = json.loads(self._store.get(key)) if self._store.check([key]) else {"beat": 0}
                    found.append(said)

        reader = threading.Thread(target=_quietly(read), name="pace.look", daemon=True)
        reader.start()
        reader.join(_ANSWER_S)
        return found if len(found) == self._size else None

    def explain_failure(self) -> str:
        """Say which ranks have left or given no sign of life for a while.

        At once where a stall came before and its culprit is silent still; else it takes a while.
        """
        if self._stalled is not None and time.monotonic() - self._stalled_at >= _SILENCE_S:
            now = self.look()
            if now is not None and (told := self._lost(self._stalled, now)):
                return told
        before = self.look()
        if before is not None:
            time.sleep(_SILENCE_S)
        after = self.look() if before is not None else None
        if before is None or after is None:
            return f"rank {self._keeper} is gone: the store that it keeps does not answer"
        return self._lost(before, after) or _unsent(after)

    def _lost(self, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
        # Those that left because of this very failure are not its cause.
        left = [rank for rank, said in enumerate(after) if said.get("left") and not said.get("failed")]
        silent = [
            rank
            for rank, (early, late) in enumerate(zip(before, after, strict=True))
            if early["beat"] == late["beat"] and rank != self._rank and not late.get("left")
        ]
        told = [f"rank {rank} gives no sign of life" for rank in silent]
        told += [f"rank {rank} has left the training" for rank in left]
        return ", ".join(told)

    def explain_stall(self) -> str:
        """Say which ranks have not submitted which groups."""
        self._stalled, self._stalled_at = self.look(), time.monotonic()
        if self._stalled is None:
            return f"the store that rank {self._keeper} keeps does not answer"
        return _unsent(self._stalled) or EVERYTHING_SENT


def _unsent(said: list[dict[str, Any]]) -> str:
    newest = max(each.get("round", 0) for each in said)
    told = []
    for rank, each in enumerate(said):
        missing = each.get("missing", []) if each.get("round", 0) == newest else ["all of this round's"]
        if missing:
            told.append(f"rank {rank} has not sent groups {', '.join(map(str, missing))}")
    return "; ".join(told)


def _quietly(read: Callable[[], None]) -> Callable[[], None]:
    def attempt() -> None:
        try:
            read()
        except (RuntimeError, OSError):  # no answer is an answer here
            return

    return attempt
