"""From an outer-sync document to the solver's arrays, and from fragments to their steady state."""

import heapq
from dataclasses import dataclass

import numpy as np

from pace_sync.documents.outer_sync import OuterSync
from pace_sync.solver.streaming.capacity import StreamingLinks
from pace_sync.solver.streaming.steady_state import SteadyState, StreamingSends, steady_state

# A stretch of a layer: its number, where it begins, and its bytes.
Stretch = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentSend:
    """A fragment of a plan or of a rival: its content, and when it goes where."""

    parts: tuple[Stretch, ...]
    link: int
    send_step: int
    delay_steps: int

    @property
    def size_bytes(self) -> int:
        """Bytes of its parts."""
        return sum(size for _, _, size in self.parts)


def streaming_links(problem: OuterSync) -> StreamingLinks:
    """Return what the bound and the windows need."""
    return StreamingLinks(
        call_s=np.array([problem.call_s(link) for link in problem.links]),
        # Below this, what a link could carry leaves a double's range.
        seconds_per_byte=np.maximum([problem.seconds_per_byte(link) for link in problem.links], 1e-200),
        step_s=problem.busy_step_s,
        period_steps=problem.period_steps,
        most_delay=problem.max_delay_steps,
        most_fragments=most_fragments(problem),
    )


def most_fragments(problem: OuterSync) -> int:
    """Return the most fragments that a plan may have."""
    layers = len(problem.layers)
    if problem.cutting == "none":
        return layers
    limit = problem.size_bytes if problem.cutting == "anywhere" else layers
    return limit if problem.max_fragments is None else min(limit, problem.max_fragments)


def transfer_s(problem: OuterSync, link: int, size_bytes: int) -> float:
    """Return the seconds of an all-reduce of a fragment over a link."""
    host = problem.links[link]
    return problem.call_s(host) + size_bytes * problem.seconds_per_byte(host)


def steady_state_of(problem: OuterSync, fragments: list[FragmentSend]) -> SteadyState:
    """Return the steady state of fragments, which are ordered by their sending."""
    return steady_state(
        StreamingSends(
            transfer_s=np.array([transfer_s(problem, each.link, each.size_bytes) for each in fragments]),
            link=np.array([each.link for each in fragments], dtype=np.int64),
            send_step=np.array([each.send_step for each in fragments], dtype=np.int64),
            delay_steps=np.array([each.delay_steps for each in fragments], dtype=np.int64),
            step_s=problem.busy_step_s,
            period_steps=problem.period_steps,
        )
    )


def cut_line(problem: OuterSync, ends: list[float]) -> list[tuple[Stretch, ...]]:
    """Cut the layers, one after another, near these bytes, between elements; one tuple for each end."""
    from pace.documents.profile import ELEMENT_BYTES

    found: list[tuple[Stretch, ...]] = []
    layer = at = first = 0  # `at`: where the stretch begins in the layer; `first`: where the layer begins
    for number, end in enumerate(ends):
        parts: list[Stretch] = []
        last = number == len(ends) - 1
        while layer < len(problem.layers):
            size = problem.layers[layer].size_bytes
            element = ELEMENT_BYTES[problem.layers[layer].dtype]
            until = size if last else min(size, max(at, round((end - first) / element) * element))
            if until > at:
                parts.append((layer, at, until - at))
            at = until
            if at < size:
                break
            layer, at, first = layer + 1, 0, first + size
        found.append(tuple(parts))
    return found


def balanced_runs(sizes: list[int], count: int) -> list[list[int]]:
    """Return at most `count` runs of neighbors with the least largest size, as equal as that allows."""
    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if len(_runs(sizes, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    found = _runs(sizes, low)
    # Splitting a run leaves the largest as it is, and brings the number up to what was asked.
    while len(found) < min(count, len(sizes)):
        widest = max((run for run in found if len(run) > 1), key=lambda run: sum(sizes[each] for each in run))
        place = found.index(widest)
        total, part, cut = sum(sizes[each] for each in widest), 0, 0
        while cut < len(widest) - 1 and (not cut or 2 * part < total):
            part += sizes[widest[cut]]
            cut += 1
        found[place : place + 1] = [widest[:cut], widest[cut:]]
    return found


def _runs(sizes: list[int], largest: int) -> list[list[int]]:
    found: list[list[int]] = [[]]
    filled = 0
    for number, size in enumerate(sizes):
        if filled + size > largest:
            found.append([])
            filled = 0
        found[-1].append(number)
        filled += size
    return found


def largest_first(sizes: list[int], count: int) -> list[list[int]]:
    """Return `count` bins: each layer, the largest first, goes to the bin with the least."""
    bins: list[list[int]] = [[] for _ in range(min(count, len(sizes)))]
    heap = [(0, place) for place in range(len(bins))]
    for number in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        filled, place = heapq.heappop(heap)
        bins[place].append(number)
        heapq.heappush(heap, (filled + sizes[number], place))
    return [sorted(each) for each in bins]
