"""Other systems' rules over the runtime's wire: frames, connections, pacing, sums and threads stay the same.

What is exchanged is what ``pace_servers.simulation.traffic.ServersRules`` says: which partition a
worker hands over next, how many bytes it may hand over, and when a server answers. A partition goes out whole
and is answered when all of it is summed, unlike our own chunks. A server answers in the order of the plan.
For rules that say "in the order of arrival" that is the same: their plans are in the order of readiness, and
every connection keeps it.
"""

import heapq
import itertools
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pace.runtime.transports.runs import Runs
from pace.runtime.transports.transport import After, Done, SegmentCall
from pace.wire.frames import CHUNK_BYTES, LARGEST_PAYLOAD_BYTES, FrameKind
from pace_servers.runtime.layout import Layout, ServedSegment, memory_of
from pace_servers.runtime.link import PushPullCall, ServerLink
from pace_servers.runtime.push_pull import PushPullTransport
from pace_servers.runtime.server import Server
from pace_servers.runtime.session import Session
from pace_servers.runtime.sums import Reply
from pace_servers.simulation.traffic import ServersRules

# A push counts as gone when the kernel holds no more of it unsent: less would leave the link idle.
UNSENT_BYTES = 16 << 10

# Two numbers of 4 bytes that a policy with a barrier pushes to every server after the round's partitions: the
# first comes back when all workers have pushed everything to that server, the second asks for the pulls.
_MARKERS = (ServedSegment(size_bytes=4, dtype="float32", turn=0),) * 2


class WholeSession(Session):
    """Answers a segment when all of it is summed, as systems do whose messages are whole partitions."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._partial: dict[tuple[int, int], list[Reply]] = {}

    def _put(self, layout: Layout, number: int, replies: Iterable[Reply]) -> None:
        super()._put(layout, number, self._whole(layout, replies))

    def _whole(self, layout: Layout, replies: Iterable[Reply]) -> list[Reply]:
        complete: list[Reply] = []
        for reply in replies:
            parts = self._partial.setdefault((reply.worker, reply.segment), [])
            parts.append(reply)
            if sum(len(each.memory) for each in parts) == layout.segments[reply.segment].size_bytes:
                complete += self._partial.pop((reply.worker, reply.segment))
        return complete


class BarrierSession(WholeSession):
    """Answers no segment before all workers have asked for the round's pulls."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._held: list[Reply] = []

    def _put(self, layout: Layout, number: int, replies: Iterable[Reply]) -> None:
        pushed, asked = len(layout.segments) - 2, len(layout.segments) - 1
        due: list[Reply] = []
        for reply in self._whole(layout, replies):
            if reply.segment < pushed:
                self._held.append(reply)
                continue
            due.append(reply)
            if reply.segment == asked:
                # In their order, as the first may leave before the others are put there.
                due += sorted(self._held, key=lambda held: self._rank(layout.segments[held.segment].turn))
                self._held = []
        Session._put(self, layout, number, due)


class ShuffledSession(WholeSession):
    """Answers in a random order of its own for each worker and round, as TensorFlow pulls."""

    def _rank(self, turn: int) -> int:
        return turn and 1 + random.getrandbits(32)  # markers have turn 0


class ShuffledBarrierSession(ShuffledSession, BarrierSession):
    """Answers in a random order, when all workers have asked for the round's pulls."""


class WholeServer(Server):
    """A server of whole partitions."""

    session_type = WholeSession


class BarrierServer(Server):
    """A server of whole partitions with a barrier at every step."""

    session_type = BarrierSession


class ShuffledServer(Server):
    """A server of whole partitions in a random order."""

    session_type = ShuffledSession


class ShuffledBarrierServer(Server):
    """A server of whole partitions in a random order, with a barrier at every step."""

    session_type = ShuffledBarrierSession


def server_type(rules: ServersRules, *, shuffled: bool = False) -> type[Server]:
    """Return the server that keeps to a policy's rules, in the plan's order or in a random one."""
    if shuffled:
        return ShuffledBarrierServer if rules.step_barrier else ShuffledServer
    return BarrierServer if rules.step_barrier else WholeServer


class HandedOverLink(ServerLink):
    """A link that writes segments in the order in which they were handed over, whatever their turns."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._sequence = itertools.count()
        super().__init__(*arguments, **named)

    def _urgency(self, exchange: PushPullCall, turn: int) -> tuple[int, ...]:  # noqa: ARG002
        return (next(self._sequence),)


@dataclass(slots=True, kw_only=True)
class _Part:
    """A partition that waits for its turn on one connection."""

    link: int
    size_bytes: int
    call: PushPullCall


class _Purse:
    """Bytes that were handed over under one credit and have not left."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.parts = 0

    def admits(self, part: _Part, rules: ServersRules) -> bool:
        if self.parts == 0:
            return True
        if rules.overshoots:
            return self.size_bytes < rules.credit_bytes
        return self.size_bytes + part.size_bytes <= rules.credit_bytes


class PolicyTransport(PushPullTransport):
    """Hands partitions over by a policy's rules, and leaves the rest to ``PushPullTransport``.

    Parameters
    ----------
    rules
        Rules for workers: credit, its scope, order of arrival, the barrier at every step.
    shuffled
        Whether colocated servers answer in a random order.

    Raises
    ------
    ValueError
        When a rule is not known here.
    """

    link_type = HandedOverLink
    repeats = False
    takes_runs = False

    def __init__(
        self, prepare: Any, *, rules: ServersRules, timeout_s: float, shuffled: bool = False
    ) -> None:
        if rules.led or rules.push_in_order or rules.until_pulled or rules.barrier or rules.streams != 1:
            raise ValueError(f"rules that this wire does not know: {rules}")
        self.server_type = server_type(rules, shuffled=shuffled)
        self._rules = rules
        self._gate = threading.RLock()
        self._sequence = itertools.count()
        self._waiting: list[list[tuple[tuple[int, ...], int, _Part]]] = []
        self._purses: list[_Purse] = []
        self._turns: dict[str, int] = {}
        self._announced_to: list[Layout] = []
        self._entered = 0
        self._barriers = 0
        super().__init__(prepare, timeout_s=timeout_s, notsent_bytes=UNSENT_BYTES)

    def prepare(self, calls: Sequence[SegmentCall], **how: Any) -> None:
        """Place the segments of a plan on the servers; see ``PushPullTransport``."""
        self._turns = {call.name: call.turn for call in calls}
        self._announced_to = []
        self._waiting = [[] for _ in self._links]
        self._purses = [_Purse() for _ in self._links] if self._rules.per_connection else [_Purse()]
        # One number more, so that markers come first at the servers.
        super().prepare([replace(call, turn=call.turn + 1) for call in calls], **how)

    def _announced(self, layout: Layout) -> Layout:
        largest = max((segment.size_bytes for segment in layout.segments), default=CHUNK_BYTES)
        whole = -(-largest // 8) * 8
        markers = _MARKERS if self._rules.step_barrier else ()
        announced = replace(
            layout,
            segments=layout.segments + markers,
            chunk_bytes=whole if whole <= LARGEST_PAYLOAD_BYTES[FrameKind.PUSH] else layout.chunk_bytes,
        )
        self._announced_to.append(announced)
        return announced

    def _start(
        self,
        segment: torch.Tensor,
        name: str,
        kind: FrameKind,
        done: Done,
        after: After | None,
        runs: Runs | None = None,
    ) -> None:
        assert after is None, "sums in the host's memory need nothing afterwards"
        assert runs is None, "other systems send whole gradients"
        each = self._exchanges[name]
        each.round += 1
        part = _Part(
            link=self._links.index(each.link),
            size_bytes=segment.numel() * segment.element_size(),
            call=PushPullCall(
                segment=each.place, round=each.round, memory=memory_of(segment), done=done, kind=kind
            ),
        )
        part.call.on_left = lambda: self._left(part)
        with self._gate:
            order = () if self._rules.arrival_pushes else (part.call.round, self._turns[name])
            heapq.heappush(self._waiting[part.link], (order, next(self._sequence), part))
            self._hand_over()
            self._entered += 1
            if self._rules.step_barrier and self._entered == len(self._exchanges):
                self._entered = 0
                self._barriers += 1
                self._mark(len(_MARKERS), lambda: self._mark(1, lambda: None))

    def _purse(self, part: _Part) -> _Purse:
        return self._purses[part.link if self._rules.per_connection else 0]

    def _hand_over(self) -> None:
        """Hand over what the credit admits; with the lock held."""
        while True:
            heads = sorted(queue[0] for queue in self._waiting if queue)
            part = next((part for *_, part in heads if self._purse(part).admits(part, self._rules)), None)
            if part is None:
                return
            if not self._rules.per_connection and part is not heads[0][-1]:
                return  # nobody overtakes the one for which credit is short
            heapq.heappop(self._waiting[part.link])
            purse = self._purse(part)
            purse.size_bytes += part.size_bytes
            purse.parts += 1
            self._links[part.link].start(part.call)

    def _left(self, part: _Part) -> None:
        with self._gate:
            purse = self._purse(part)
            purse.size_bytes -= part.size_bytes
            purse.parts -= 1
            self._hand_over()

    def _mark(self, from_end: int, then: Callable[[], None]) -> None:
        """Push a marker to every server, and do what follows when all have come back."""
        missing = len(self._links)

        def came_back(error: BaseException | None) -> None:
            nonlocal missing
            with self._gate:
                missing -= 1
                last = missing == 0
            if last and error is None:
                then()

        for link, layout in zip(self._links, self._announced_to, strict=True):
            link.start(
                PushPullCall(
                    segment=len(layout.segments) - from_end,
                    round=self._barriers,
                    memory=memory_of(torch.zeros(1)),
                    done=came_back,
                )
            )
