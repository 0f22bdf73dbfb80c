"""Signs of life of all ranks, which turn the error "an all-reduce failed" into "rank 3 is gone".

Every rank writes a sign of life with its progress to a shared store, twice a second, from its own thread. The
signs are read only when something stalls or fails.
"""

import contextlib
import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import MethodType
from typing import Any, Protocol

from pace.runtime.event_log import log
from pace.runtime.transports.signs_of_life import absent, left, lost, names_in_job, no_store, unsent
from pace.runtime.transports.torch_threads import Sockets, torch_thread

PERIOD_S = 0.5

# The key under which a rank asks other ranks for their contributions.
_ASKED = "asked"

# The key under which a rank asks other ranks for their parts of the optimizer's state: the number of the
# gathering, the step, and whether it is the last.
_STATE_ASKED = "state"

# The key under which a failed rank writes which rank is at fault; and where each rank says that it knows.
_FAILED, _HEARD = "failed", "heard"

# While a rank finds out which rank is at fault, it looks so often for what others found out.
_HEAR_S = 0.1

# A rank that was asked once expects to be asked again, and polls more often for a while.
_OFTEN_S = 0.02
_ASKED_AGAIN_S = 60.0

# A rank without a sign of life for this many seconds is silent. A call that holds the interpreter may last
# longer: who can still be asked for a checkpoint waits longer.
_SILENCE_S = 2.5 * PERIOD_S
_HELD_S = 15.0

# How often a rank looks whether others still need it.
LOOK_S = 0.1

# A rank that has been in one call of a collective for this many seconds waits for a rank that has ended.
_WAITS_S = 5.0

# The store may be on the lost rank: without an answer in this many seconds, it is taken for lost.
_ANSWER_S = 1.5

# How long, in seconds, ranks wait for others to wrap their optimizers before one of them tells of it.
_AWAITED_S = 5.0

# How long, in seconds, the rank with the store stays for ranks that notice a failure later.
_LINGER_S = 6.0

EVERYTHING_SENT = "every rank has sent all of its groups: the network is slow, or a rank is silent"


class Store(Protocol):
    """The part of torch's key-value stores that is used here."""

    def set(self, key: str, value: str, /) -> None:
        """Write a value."""

    def get(self, key: str, /) -> bytes:
        """Read a value, waiting until there is one."""

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys have values."""


Progress = Callable[[], dict[str, Any]]
"""Returns a rank's progress: ``round`` (steps taken), ``open`` (whether the next step has begun), ``missing``
(the groups not submitted in this step), ``failed`` (whether it noticed a failure), ``waits_s`` (for how many
seconds the training thread has been in one call that waits for all ranks)."""


class Peers:
    """Writes this rank's sign of life, and reads those of the other ranks.

    Parameters
    ----------
    store
        The store shared by all ranks; no other thread uses it.
    progress
        See ``follow``.
    keeper
        The rank whose process holds the store; None if it is none of these ranks.
    names
        What to call each rank, if not by its number.
    sockets
        The store's connections.

    Attributes
    ----------
    rank_lost
        Whether ``explain_failure`` found a rank that has left or is silent.
    gives_state
        Whether this rank is giving another one its part of the optimizer's state.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        progress: Progress | None = None,
        *,
        keeper: int | None = 0,
        names: Sequence[str] | None = None,
        sockets: Sockets | None = None,
    ) -> None:
        self._store: Store | None = store
        self._sockets = sockets
        self._rank = rank
        self._size = size
        self._keeper = keeper
        self._names = names_in_job(range(size)) if names is None else names
        self._progress: Callable[[], Progress | None] = lambda: None
        self._asked_until = 0.0
        self._answer: Callable[[], Callable[[int], bool] | None] = lambda: None
        if progress is not None:
            self.follow(progress)
        self._give_state: Callable[[], Callable[[list[int]], bool] | None] = lambda: None
        self._on_failure: Callable[[], Callable[[str], None] | None] = lambda: None
        self._told = ""
        self._alive: list[int] = []
        self._stalled: list[dict[str, Any]] | None = None
        self._stalled_at = 0.0
        self._explained: str | None = None
        self.rank_lost = False
        self.gives_state = False
        self._goodbye: dict[str, Any] = {}
        self._leaves_s = 0.0
        self._store_lost = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = torch_thread(self._run, name="pace.peers", sockets=sockets)
        self._thread.start()

    def follow(self, progress: Progress, answer: Callable[[int], bool] | None = None) -> None:
        """From now on, write this rank's progress with every sign of life.

        Bound methods are held weakly, so that this object does not keep the training alive.

        Parameters
        ----------
        progress
            Returns the progress.
        answer
            Called repeatedly, in the thread of this object, with the turn that another rank asked for.
            Returns whether this rank's contribution is now final.
        """
        self._progress = (
            weakref.WeakMethod(progress) if isinstance(progress, MethodType) else lambda: progress
        )
        self._answer = weakref.WeakMethod(answer) if isinstance(answer, MethodType) else lambda: answer

    def follow_state(self, give: Callable[[list[int]], bool]) -> None:
        """From now on, call this bound method (held weakly) when another rank calls ``ask_for_state``."""
        self._give_state = weakref.WeakMethod(give)

    def follow_failures(self, fail: Callable[[str], None]) -> None:
        """From now on, call this with the reason when another rank has failed; bound methods are held weakly.

        A transport may notice a lost rank only on some ranks, while others go on waiting.
        """
        self._on_failure = weakref.WeakMethod(fail) if isinstance(fail, MethodType) else lambda: fail

    def _run(self) -> None:
        beat = 0
        last = False
        while not last:
            beat += 1
            signs = self._how_far() | {"beat": beat, "left": last}
            try:
                self._say(signs)
                self._learn_failure()
                last = self._listen()
                if last:
                    self._say(self._how_far() | {"beat": beat + 1, "left": True})
            except (RuntimeError, OSError):  # the store ended with its rank: other ranks notice too
                return

    def _learn_failure(self) -> None:
        # Act at the second poll: most ranks notice by themselves, and then name what they waited for.
        told = self._told
        self._hear()
        fail = self._on_failure()
        if told and fail is not None:
            fail(told)

    def _hear(self) -> None:
        """Read which rank is at fault, if another rank has written it, and say that it was read."""
        told = self._asked_for(_FAILED).decode()
        if told and not self._told:
            with self._lock:
                if self._store is not None:
                    self._store.set(f"{_HEARD}/{self._rank}", "")
        self._told = told

    def _say(self, signs: dict[str, Any]) -> None:
        with self._lock:
            if self._store is not None:
                self._store.set(f"alive/{self._rank}", json.dumps(signs | self._goodbye))

    def _listen(self) -> bool:
        """Answer other ranks until the next sign of life is due; return whether this rank leaves."""
        until = time.monotonic() + PERIOD_S
        while (left_s := until - time.monotonic()) > 0:
            often = time.monotonic() < self._asked_until
            if self._stop.wait(min(left_s, _OFTEN_S) if often else left_s):
                return True
            if self._answer_others():
                self._asked_until = time.monotonic() + _ASKED_AGAIN_S
        return False

    def _answer_others(self) -> bool:
        # Hold a reference to the callback only during its call, not while the store is asked.
        if self._give_state() is not None:
            wanted = self._asked_for(_STATE_ASKED)
            if wanted and (give := self._give_state()) is not None:
                self.gives_state = True
                try:
                    if give(json.loads(wanted)):
                        return True
                finally:
                    self.gives_state = False
        if self._answer() is None:
            return False
        asked = self._asked_for(_ASKED)
        answer = self._answer()
        return bool(asked) and answer is not None and answer(int(asked))

    def _asked_for(self, key: str) -> bytes:
        with self._lock:
            store = self._store
            return bytes(store.get(key)) if store is not None and store.check([key]) else b""

    def ask(self, turn: int) -> None:
        """Ask the other ranks to make their contributions to a turn final; this rank waits for them."""
        self._put(_ASKED, str(turn))

    def ask_for_state(self, number: int, step: int, *, last: bool) -> None:
        """Ask the other ranks to take part in a gathering of the optimizer's state."""
        self._put(_STATE_ASKED, json.dumps([number, step, int(last)]))

    def _put(self, key: str, value: str) -> None:
        # Called in the training thread. If the store is lost, the next wait ends with its time-out.
        def write() -> None:
            with self._lock:
                if self._store is not None:
                    self._store.set(key, value)

        self._within_answer(write, "pace.ask")

    def _how_far(self) -> dict[str, Any]:
        # Not in the thread's loop, which would keep a reference to the callback while it sleeps.
        progress = self._progress()
        return {} if progress is None else progress()

    def close(self, reason: str | None = None, *, failed: bool = False) -> None:
        """Write a goodbye and stop. Idempotent. Signs of other ranks can be read until ``release``.

        Parameters
        ----------
        reason
            Why this rank leaves, for messages on other ranks.
        failed
            Whether it leaves because of a failure that another rank caused.
        """
        self.leave(reason, failed=failed)
        # This is the limit over all calls: the store may be on a stopped rank.
        until_s = self._leaves_s + (0.0 if self._store_lost else _ANSWER_S)
        self._thread.join(timeout=max(until_s - time.monotonic(), 0.0))

    def leave(self, reason: str | None = None, *, failed: bool = False) -> None:
        """Begin to write a goodbye; see ``close``, which waits until it is written."""
        if self._stop.is_set():
            return
        if reason is not None:
            self._goodbye["reason"] = reason
        if failed:
            self._goodbye["failed"] = True
        self._leaves_s = time.monotonic()
        self._stop.set()

    def lose_store(self) -> None:
        """From now on, do not wait for the store to answer."""
        self._store_lost = True

    def release(self) -> None:
        """Release the store."""
        self._store = None

    def linger(self) -> None:
        """Keep the store until the other ranks have left or are silent, then release it.

        They read in it which rank is at fault. Otherwise they would blame the rank with the store if it left
        first.
        """
        if self._rank == self._keeper:
            until = time.monotonic() + _LINGER_S
            heard: dict[int, tuple[int, float]] = {}
            while time.monotonic() < until and self._present(heard, _SILENCE_S):
                time.sleep(LOOK_S)
        self.release()

    def announce_end(self, turn: int, *, with_process: bool) -> Callable[[], bool]:
        """Say that this rank has ended; return a function that tells whether others may still ask it.

        Others may save what only this rank has, after the last step. The function returns False once all
        others have ended or are silent, or one has begun a step after `turn`; if this process ends
        (`with_process`), also once one waits for all ranks in a call of its own.
        """
        self._goodbye["done"] = True
        heard: dict[int, tuple[int, float]] = {}
        first: dict[int, int] = {}

        def may_ask() -> bool:
            present = self._present(heard, _HELD_S)
            for rank, each in present.items():
                # Signs may be older than this call, and of an earlier step.
                new = each["beat"] > first.setdefault(rank, each["beat"]) + 1
                waits = with_process and new and each.get("waits_s", 0.0) > _WAITS_S
                if waits or (each.get("round", turn), bool(each.get("open"))) > (turn, False):
                    return False
            # Who keeps the store goes last, as others write into it until they have left.
            return any(self._rank == self._keeper or not each.get("done") for each in present.values())

        return may_ask

    def _present(self, heard: dict[int, tuple[int, float]], silence_s: float) -> dict[int, dict[str, Any]]:
        """Return the signs of the other ranks that have not left and are not silent; {} without the store.

        `heard` has the last sign of each rank, and when it came.
        """
        now = time.monotonic()
        present = {}
        for rank, each in enumerate(self.look() or ()):
            beat, since = heard.get(rank, (-1, now))
            if each["beat"] != beat:
                beat, since = heard[rank] = each["beat"], now
            if rank != self._rank and not each.get("left") and now - since < silence_s:
                present[rank] = each
        return present

    def look(self) -> list[dict[str, Any]] | None:
        """Return the last sign of life of every rank; None if the store does not answer."""
        found: list[dict[str, Any]] = []
        store = self._store
        if store is None:
            return None

        def read() -> None:
            with self._lock:
                for rank in range(self._size):
                    key = f"alive/{rank}"
                    signs = json.loads(store.get(key)) if store.check([key]) else {"beat": 0}
                    found.append(signs)

        self._within_answer(read, "pace.look")
        return found if len(found) == self._size else None

    def explain_failure(self) -> str:
        """Return which ranks have left or are silent; the same text at every call.

        Takes a while, unless there was a stall before and the rank at fault is still silent.
        """
        if self._explained is None:
            self._explained = self._explain()
            if self.rank_lost:
                self._put(_FAILED, self._explained)
                self._within_answer(self._hear, "pace.hear")
                if self._rank == self._keeper:
                    self._wait_until_heard()
        return self._explained

    def _wait_until_heard(self) -> None:
        """Wait until ranks that are alive know which rank is at fault: the store ends with this process."""
        keys = [f"{_HEARD}/{rank}" for rank in self._alive]

        def wait() -> None:
            while time.monotonic() < until:
                with self._lock:
                    if self._store is None or self._store.check(keys):
                        return
                time.sleep(_OFTEN_S)

        until = time.monotonic() + _ANSWER_S
        if keys:
            self._within_answer(wait, "pace.heard")

    def _lost(self, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
        """Return which ranks have left or were silent between two looks, and note which others were not."""
        self._alive = [
            rank
            for rank, (early, late) in enumerate(zip(before, after, strict=True))
            if rank != self._rank and late["beat"] != early["beat"] and not late.get("left")
        ]
        return lost(before, after, self._names, self._rank)

    def _explain(self) -> str:
        if self._stalled is not None and time.monotonic() - self._stalled_at >= _SILENCE_S:
            now = self.look()
            if now is not None and (told := self._lost(self._stalled, now)):
                self.rank_lost = True
                return told
        before = self.look()
        until = time.monotonic() + _SILENCE_S
        while before is not None and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, _HEAR_S))
            self._within_answer(self._hear, "pace.hear")
        after = self.look() if before is not None else None
        if before is None or after is None:
            self.rank_lost = True
            self.lose_store()
            # The rank with the store may have left earlier, for the same reason as this rank.
            return (
                self._told
                or ", ".join(left(before or [], self._names, self._rank).values())
                or self._no_store()
            )
        told = self._lost(before, after)
        self.rank_lost = bool(told)
        return told or unsent(after, self._names)

    def _no_store(self) -> str:
        if self._keeper is None:
            return "the store in which ranks say that they are alive does not answer"
        return no_store(self._names[self._keeper])

    def explain_stall(self) -> str:
        """Return which ranks have not submitted which groups."""
        self._stalled, self._stalled_at = self.look(), time.monotonic()
        if self._stalled is None:
            return self._no_store()
        return unsent(self._stalled, self._names) or EVERYTHING_SENT

    @contextlib.contextmanager
    def meeting(self, timeout_s: float) -> Iterator[None]:
        """Within this context this rank waits for all others; the first that waits long names the absent."""
        timer = threading.Timer(min(_AWAITED_S, timeout_s / 2), self._tell_of_absent)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _tell_of_absent(self) -> None:
        signs = self.look() or []
        here = [rank for rank, each in enumerate(signs) if each["beat"]]
        if here[:1] == [self._rank] and (names := absent(signs, self._names)):
            log.warning("pace.stall", waiting_for="all ranks to wrap their optimizers", peers=names)

    def _within_answer(self, call: Callable[[], None], name: str) -> None:
        """Call the store with a time limit, and without waiting once it is lost; ignore a missing answer."""

        def attempt() -> None:
            with contextlib.suppress(RuntimeError, OSError):
                call()

        thread = torch_thread(attempt, name=name, sockets=self._sockets)
        thread.start()
        thread.join(0.0 if self._store_lost else _ANSWER_S)
