"""The planner of resharding: who sends which boxes to whom, along which chain of receivers, how fast.

Its simulator has streams that run at the same time and share links max-min fairly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pace.documents.base import refuse_other
from pace.solver.arrays import FloatArray
from pace.version import __version__
from pace_sync.documents.reshard_plan import (
    ReshardBound,
    ReshardPlan,
    ReshardPrediction,
    ReshardRival,
    ShardStream,
)
from pace_sync.documents.resharding import Resharding, TensorBox
from pace_sync.errors import InvalidSync
from pace_sync.planning.box_classes import BoxClass, box_classes
from pace_sync.solver.sender_shares import share_among_senders

# Fair shares of links are let be where they are as good as paces, up to this factor.
_AS_GOOD = 1.01
# Fair shares of more streams are not simulated, as that takes too long: all have a pace.
_MOST_FAIR_STREAMS = 1000
# Small enough that receivers begin early, large enough that messages are few.
_BUCKET_BYTES = 16 << 20


def plan_reshard(problem: Resharding) -> ReshardPlan:
    """Return streams that bring every receiver what it wants, with a bound that no other plan beats.

    The shards of all hosts cut tensors into boxes. Boxes that several senders hold are shared among these so
    that the busiest link is done earliest (``pace_sync.solver.sender_shares``). Bytes that several
    receivers want leave the sender once and go from receiver to receiver, the fastest first. All streams run
    at the same time. Where fair shares of the links would make one late, each has a pace at which all end
    together.

    In this model the plan is optimal up to the delay of hops, and up to shares that end inside a row.

    Raises
    ------
    InvalidSync
        For what is no resharding document, and if nobody holds what a receiver wants.
    """
    refuse_other(problem, Resharding, InvalidSync)
    classes = box_classes(problem)
    keys = list(classes)
    sizes = np.array([sum(problem.size_bytes(box) for box in classes[key]) for key in keys], dtype=np.float64)
    rates = np.array([sender.bytes_per_s for sender in problem.senders], dtype=np.float64)
    holds = np.zeros((len(keys), len(rates)), dtype=np.bool_)
    for number, (holders, _) in enumerate(keys):
        holds[number, list(holders)] = True
    found = share_among_senders(sizes, holds, rates)
    boxes: dict[tuple[int, tuple[int, ...]], list[TensorBox]] = {}
    for key, shares in zip(keys, found.shares, strict=True):
        for sender, mine in _split(problem, classes[key], key, shares.tolist()):
            boxes.setdefault((sender, key[1]), []).extend(mine)
    bound = _bound(problem, found.bound_s, np.flatnonzero(found.tight).tolist())
    return _document(problem, boxes, bound, _rivals(problem, classes))


def _split(
    problem: Resharding, boxes: list[TensorBox], key: BoxClass, shares: list[float]
) -> list[tuple[int, list[TensorBox]]]:
    """Give each holder boxes of about its share; a box is cut between rows of its first long dimension."""
    left = list(boxes)
    given: list[tuple[int, list[TensorBox]]] = []
    owed = 0.0
    for holder in key[0]:
        owed += shares[holder]
        mine: list[TensorBox] = []
        while left and (holder == key[0][-1] or owed > 0):
            size = problem.size_bytes(left[0])
            if size <= owed or holder == key[0][-1]:
                mine.append(left.pop(0))
                owed -= size
                continue
            cut = _cut(left[0], owed / size)
            if cut is None:
                break
            first, rest = cut
            owed -= problem.size_bytes(first)
            mine.append(first)
            left[0] = rest
            break
        if mine:
            given.append((holder, mine))
    return given


def _cut(box: TensorBox, share: float) -> tuple[TensorBox, TensorBox] | None:
    axis = next((place for place, length in enumerate(box.shape) if length > 1), None)
    if axis is None:
        return None
    rows = round(box.shape[axis] * share)
    if not 0 < rows < box.shape[axis]:
        return None

    def part(begin: int, length: int) -> TensorBox:
        return TensorBox(
            tensor=box.tensor,
            begin=(*box.begin[:axis], begin, *box.begin[axis + 1 :]),
            shape=(*box.shape[:axis], length, *box.shape[axis + 1 :]),
        )

    begin = box.begin[axis]
    return part(begin, rows), part(begin + rows, box.shape[axis] - rows)


def _bound(problem: Resharding, senders_s: float, tight: list[int]) -> ReshardBound:
    best = ReshardBound(
        kind="senders", hosts=tuple(problem.senders[number].name for number in tight), bound_s=senders_s
    )
    for receiver in problem.receivers:
        size = sum(problem.size_bytes(box) for box in receiver.wants)
        for kind, seconds in (
            ("link", size / receiver.bytes_per_s),
            ("work", size * receiver.work_s_per_byte),
        ):
            if seconds > best.bound_s:
                best = ReshardBound(kind=kind, hosts=(receiver.name,), bound_s=seconds)
    return best


def links_of(problem: Resharding) -> dict[tuple[str, str, str], float]:
    """Return the rate of each direction of each host's link."""
    rates = {("sender", each.name, "up"): each.bytes_per_s for each in problem.senders}
    for receiver in problem.receivers:
        rates |= {("receiver", receiver.name, way): receiver.bytes_per_s for way in ("up", "down")}
    return rates


def crossed(sender: str, receivers: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Return the directions of links that a stream crosses."""
    ways = [("sender", sender, "up"), *(("receiver", name, "down") for name in receivers)]
    return ways + [("receiver", name, "up") for name, _ in pairwise(receivers)]


def _document(
    problem: Resharding,
    boxes: dict[tuple[int, tuple[int, ...]], list[TensorBox]],
    bound: ReshardBound,
    rivals: tuple[ReshardRival, ...],
) -> ReshardPlan:
    rates = links_of(problem)
    places = {way: place for place, way in enumerate(rates)}
    capacity = np.array(list(rates.values()))
    streams = []
    for (sender, wanters), mine in sorted(boxes.items()):
        chain = sorted(wanters, key=lambda number: -problem.receivers[number].bytes_per_s)
        names = tuple(problem.receivers[number].name for number in chain)
        size = sum(problem.size_bytes(box) for box in mine)
        streams.append((problem.senders[sender].name, names, mine, size))
    on_links = [
        StreamOnLinks(size_bytes=size, links=tuple(places[way] for way in crossed(sender, names)))
        for sender, names, _, size in streams
    ]
    fair_s = stream_times(on_links, capacity) if len(on_links) <= _MOST_FAIR_STREAMS else [math.inf]
    loads = np.zeros(len(capacity))
    for each in on_links:
        loads[list(each.links)] += each.size_bytes
    least_s = float(np.max(loads / capacity, initial=0.0))
    paced = bool(on_links) and max(fair_s) > _AS_GOOD * least_s
    ends = [least_s] * len(streams) if paced else fair_s
    made = tuple(
        ShardStream(
            sender=sender,
            receivers=names,
            boxes=tuple(mine),
            size_bytes=size,
            bytes_per_s=size / least_s if paced else None,
            end_s=end,
        )
        for (sender, names, mine, size), end in zip(streams, ends, strict=True)
    )
    finished = finished_times(problem, made)
    pause = max(finished, default=0.0)
    return ReshardPlan(
        problem_sha256=problem.sha256,
        version=__version__,
        bucket_bytes=_BUCKET_BYTES,
        tensors=problem.tensors,
        streams=made,
        predicted=ReshardPrediction(
            pause_s=pause,
            finished_s=tuple(finished),
            gap=max(pause / bound.bound_s - 1, 0.0) if bound.bound_s else 0.0,
        ),
        bound=bound,
        rivals=rivals,
    )


def finished_times(problem: Resharding, streams: tuple[ShardStream, ...]) -> list[float]:
    """Return when each receiver has finished.

    It works on bytes as they arrive: it is done when its last byte has arrived, and not before the work on
    all of them. A stream arrives later by the hops before.
    """
    hops = {receiver.name: receiver.hop_s for receiver in problem.receivers}
    arrived = dict.fromkeys(hops, 0.0)
    for stream in streams:
        lag = 0.0
        for name in stream.receivers:
            lag += hops[name]
            arrived[name] = max(arrived[name], stream.end_s + lag)
    found = []
    for receiver in problem.receivers:
        size = sum(problem.size_bytes(box) for box in receiver.wants)
        found.append(max(arrived[receiver.name], size * receiver.work_s_per_byte))
    return found


def _rivals(problem: Resharding, classes: dict[BoxClass, list[TensorBox]]) -> tuple[ReshardRival, ...]:
    """Return what rules of today take: all shards to one sender and whole tensors to all; or unplanned."""
    whole = sum(tensor.size_bytes for tensor in problem.tensors)
    first = problem.senders[0]
    missing = whole - sum(problem.size_bytes(box) for box in first.shards)
    slowest = min(first.bytes_per_s, *(receiver.bytes_per_s for receiver in problem.receivers))
    gathered = max(missing, 0) / first.bytes_per_s + whole / slowest
    sent = [0.0] * len(problem.senders)
    for (holders, wanters), boxes in classes.items():
        sent[holders[0]] += len(wanters) * sum(problem.size_bytes(box) for box in boxes)
    direct = max(size / sender.bytes_per_s for size, sender in zip(sent, problem.senders, strict=True))
    for receiver in problem.receivers:
        direct = max(direct, sum(problem.size_bytes(box) for box in receiver.wants) / receiver.bytes_per_s)
    return (
        ReshardRival(rule="gather, then broadcast", pause_s=gathered),
        ReshardRival(rule="first holder to each receiver", pause_s=direct),
    )


_SAME = 1 + 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOnLinks:
    """Bytes that cross several links at one rate: from the sender and through each receiver of the chain."""

    size_bytes: int
    links: tuple[int, ...]


def stream_times(streams: Sequence[StreamOnLinks], capacity: FloatArray) -> list[float]:
    """Return when each stream has ended, if all begin at 0.

    Rates are max-min fair, as those of TCP flows roughly are: no stream can be faster unless a slower one
    becomes slower. They change when a stream ends. Takes O(streams * links) for each end.
    """
    uses = np.zeros((len(streams), len(capacity)), dtype=np.bool_)
    for number, stream in enumerate(streams):
        uses[number, list(stream.links)] = True
    left = np.array([stream.size_bytes for stream in streams], dtype=np.float64)
    ends = np.zeros(len(streams))
    active = left > 0
    now = 0.0
    while active.any():
        rates = _fair_rates(uses[active], capacity)
        numbers = np.flatnonzero(active)
        seconds = left[numbers] / rates
        step = float(seconds.min())
        now += step
        over = seconds <= step * _SAME
        left[numbers] -= rates * step
        ends[numbers[over]] = now
        active[numbers[over]] = False
    return [float(each) for each in ends]


def _fair_rates(uses: np.ndarray[tuple[int, int], np.dtype[np.bool_]], capacity: FloatArray) -> FloatArray:
    """Fill up all streams together until a link is full; those on it keep their rate, the others go on."""
    rates = np.zeros(len(uses))
    open_streams = np.ones(len(uses), dtype=np.bool_)
    room = capacity.copy()
    while open_streams.any():
        users = uses[open_streams].sum(axis=0)
        used = users > 0
        share = np.full(len(capacity), np.inf)
        share[used] = room[used] / users[used]
        least = float(share.min())
        fixed = open_streams & (uses & (share <= least * _SAME)).any(axis=1)
        rates[fixed] = least
        room = np.maximum(room - uses[fixed].sum(axis=0) * least, 0.0)
        open_streams &= ~fixed
    return rates
