"""The planner of resharding: who sends which boxes to whom, along which chain of receivers, how fast.

Its simulator has streams that run at the same time and share links max-min fairly.
"""

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
from pace_sync.solver.sender_shares import SenderShares, share_among_senders

# Fair shares of links are let be where they are as good as paces, up to this factor.
_AS_GOOD = 1.01
# Fair shares of more streams are not simulated, as that takes too long: all have a pace.
_MOST_FAIR_STREAMS = 1000
# Small enough that receivers begin early, large enough that messages are few.
_BUCKET_BYTES = 16 << 20
_BISECTIONS = 60
# Tolerances for what a linear program rounds: relative for bytes, in rows for rows.
_ROUNDED_UP = 1 + 1e-9
_SAME_ROW = 1e-3


def plan_reshard(problem: Resharding) -> ReshardPlan:
    """Return streams that bring every receiver what it wants, with a bound that no other plan beats.

    The shards of all hosts cut tensors into boxes. Boxes that several senders hold are shared among these so
    that the busiest link is done earliest (``pace_sync.solver.sender_shares``). Bytes that several
    receivers want leave the sender once and go from receiver to receiver, the fastest first; or the sender
    sends them to each, if the delay of hops makes that faster. All streams run at the same time. If fair
    shares of the links would make a stream late, each stream's rate is limited so that all arrive together.

    In this model the plan is optimal up to the delay of hops, and up to shares that end inside a row.

    Raises
    ------
    InvalidSync
        For what is no resharding document, and if nobody holds what a receiver wants.
    """
    refuse_other(problem, Resharding, InvalidSync)
    classes = box_classes(problem)
    found, boxes = _shared(problem, classes)
    bound = _bound(problem, found.bound_s, np.flatnonzero(found.tight).tolist())
    streams, pause = _streams(problem, boxes)
    first = _streams(problem, _by_first_holder(classes), fair=False)
    hops = any(receiver.hop_s for receiver in problem.receivers)
    if hops and any(len(wanters) > 1 for _, wanters in classes):
        direct = _streams(problem, _shared(problem, _for_each(classes))[1])
        streams, pause = min((streams, pause), direct, first, key=lambda each: each[1])
    return _document(problem, streams, bound, _rivals(problem, classes, first[1]))


Sent = dict[tuple[int, tuple[int, ...]], list[TensorBox]]
"""The boxes of each sender that it sends along a chain of receivers, both by their numbers."""


def _for_each(classes: dict[BoxClass, list[TensorBox]]) -> dict[BoxClass, list[TensorBox]]:
    """Return classes of boxes in which each receiver is alone."""
    alone: dict[BoxClass, list[TensorBox]] = {}
    for (holders, wanters), boxes in classes.items():
        for wanter in wanters:
            alone.setdefault((holders, (wanter,)), []).extend(boxes)
    return alone


def _by_first_holder(classes: dict[BoxClass, list[TensorBox]]) -> Sent:
    sent: Sent = {}
    for (holders, wanters), boxes in _for_each(classes).items():
        sent.setdefault((holders[0], wanters), []).extend(boxes)
    return sent


def _shared(problem: Resharding, classes: dict[BoxClass, list[TensorBox]]) -> tuple[SenderShares, Sent]:
    """Share boxes among the senders that hold them, so that the busiest is done earliest."""
    keys = list(classes)
    sizes = np.array([sum(problem.size_bytes(box) for box in classes[key]) for key in keys], dtype=np.float64)
    rates = np.array([sender.bytes_per_s for sender in problem.senders], dtype=np.float64)
    holds = np.zeros((len(keys), len(rates)), dtype=np.bool_)
    for number, (holders, _) in enumerate(keys):
        holds[number, list(holders)] = True
    found = share_among_senders(sizes, holds, rates)
    sent: Sent = {}
    for key, shares in zip(keys, found.shares, strict=True):
        for sender, mine in _split(problem, classes[key], key, shares.tolist()):
            sent.setdefault((sender, key[1]), []).extend(mine)
    return found, sent


def _split(
    problem: Resharding, boxes: list[TensorBox], key: BoxClass, shares: list[float]
) -> list[tuple[int, list[TensorBox]]]:
    """Give each holder boxes of its share; a box is cut between rows of its first long dimension.

    What does not fill a row is left to a faster holder, for which it is least work.
    """
    left = list(boxes)
    given: list[tuple[int, list[TensorBox]]] = []
    owed = 0.0
    slowest_first = sorted(key[0], key=lambda holder: problem.senders[holder].bytes_per_s)
    for holder in slowest_first:
        owed += shares[holder]
        mine: list[TensorBox] = []
        while left and (holder == slowest_first[-1] or owed > 0):
            size = problem.size_bytes(left[0])
            if size <= owed * _ROUNDED_UP or holder == slowest_first[-1]:
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
    rows = min(int(box.shape[axis] * share + _SAME_ROW), box.shape[axis] - 1)
    if rows == 0:
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
    nearest_s = min((each.hop_s for each in problem.receivers if each.wants), default=0.0)
    best = ReshardBound(
        kind="senders",
        hosts=tuple(problem.senders[number].name for number in tight),
        bound_s=senders_s + nearest_s,
    )
    for receiver in problem.receivers:
        size = sum(problem.size_bytes(box) for box in receiver.wants)
        for kind, seconds in (
            ("link", size / receiver.bytes_per_s + (receiver.hop_s if size else 0.0)),
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


def _streams(problem: Resharding, sent: Sent, *, fair: bool = True) -> tuple[tuple[ShardStream, ...], float]:
    """Return streams, with paces unless fair shares are as good, and when the last receiver has finished."""
    rates = links_of(problem)
    places = {way: place for place, way in enumerate(rates)}
    capacity = np.array(list(rates.values()))
    streams = []
    for (sender, wanters), mine in sorted(sent.items()):
        chain = sorted(wanters, key=lambda number: -problem.receivers[number].bytes_per_s)
        names = tuple(problem.receivers[number].name for number in chain)
        size = sum(problem.size_bytes(box) for box in mine)
        streams.append((problem.senders[sender].name, names, mine, size))
    on_links = [
        StreamOnLinks(size_bytes=size, links=tuple(places[way] for way in crossed(sender, names)))
        for sender, names, _, size in streams
    ]
    hops = {receiver.name: receiver.hop_s for receiver in problem.receivers}
    lags = np.array([sum(hops[name] for name in names) for _, names, _, _ in streams])
    paced_s = _ends_that_arrive_together(on_links, lags, capacity)
    simulated = fair and len(on_links) <= _MOST_FAIR_STREAMS
    fair_s = np.array(stream_times(on_links, capacity)) if simulated else np.full(len(on_links), np.inf)
    paced = bool(on_links) and float(np.max(fair_s + lags)) > _AS_GOOD * float(np.max(paced_s + lags))
    ends = (paced_s if paced else fair_s).tolist()
    made = tuple(
        ShardStream(
            sender=sender,
            receivers=names,
            boxes=tuple(mine),
            size_bytes=size,
            bytes_per_s=size / end if paced else None,
            end_s=end,
        )
        for (sender, names, mine, size), end in zip(streams, ends, strict=True)
    )
    return made, max(finished_times(problem, made), default=0.0)


def _ends_that_arrive_together(
    streams: "list[StreamOnLinks]", lags: FloatArray, capacity: FloatArray
) -> FloatArray:
    """Return when each stream leaves its sender, if all arrive together, as early as links allow.

    A stream of s bytes that ends after t seconds needs s / t bytes per second of each of its links. To arrive
    at T, it ends at T less its lag, the delay of its hops. What all need falls as T grows: bisection.
    """
    if not streams:
        return np.zeros(0)
    link = np.concatenate([each.links for each in streams])
    stream = np.repeat(np.arange(len(streams)), [len(each.links) for each in streams])
    sizes = np.array([each.size_bytes for each in streams], dtype=np.float64)

    def needed(ends: FloatArray) -> float:
        return float(np.max(np.bincount(link, (sizes / ends)[stream], len(capacity)) / capacity))

    earlier = lags.max() - lags
    high = needed(np.ones(len(streams)))  # seconds in which the busiest link carries all
    if not earlier.any():
        return np.full(len(streams), high)
    low = 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if needed(middle + earlier) > 1:
            low = middle
        else:
            high = middle
    return np.asarray(high + earlier, dtype=np.float64)


def _document(
    problem: Resharding,
    streams: tuple[ShardStream, ...],
    bound: ReshardBound,
    rivals: tuple[ReshardRival, ...],
) -> ReshardPlan:
    finished = finished_times(problem, streams)
    pause = max(finished, default=0.0)
    return ReshardPlan(
        problem_sha256=problem.sha256,
        version=__version__,
        bucket_bytes=_BUCKET_BYTES,
        tensors=problem.tensors,
        streams=streams,
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


def _rivals(
    problem: Resharding, classes: dict[BoxClass, list[TensorBox]], unplanned_s: float
) -> tuple[ReshardRival, ...]:
    """Return what rules of today take: all shards to one sender and whole tensors to all; or unplanned."""
    whole = sum(tensor.size_bytes for tensor in problem.tensors)
    first = problem.senders[0]
    missing = whole - sum(problem.size_bytes(box) for box in first.shards)
    gathered = [0] * len(problem.senders)
    for (holders, _), boxes in classes.items():
        if holders[0]:
            gathered[holders[0]] += sum(problem.size_bytes(box) for box in boxes)
    gather_s = max(
        max(missing, 0) / first.bytes_per_s,
        *(size / sender.bytes_per_s for size, sender in zip(gathered, problem.senders, strict=True)),
    )
    slowest = min(first.bytes_per_s, *(receiver.bytes_per_s for receiver in problem.receivers))
    work_s = max(
        receiver.work_s_per_byte * sum(problem.size_bytes(box) for box in receiver.wants)
        for receiver in problem.receivers
    )
    broadcast_s = whole / slowest + sum(receiver.hop_s for receiver in problem.receivers)
    return (
        ReshardRival(
            rule="gather, then broadcast",
            pause_s=gather_s + max(broadcast_s, work_s),
        ),
        ReshardRival(rule="first holder to each receiver", pause_s=unplanned_s),
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
