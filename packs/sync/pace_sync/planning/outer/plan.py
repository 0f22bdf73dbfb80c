"""The planner of outer steps: fragments, when each is sent over which link, and when it is applied."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from pace.documents.base import refuse_other
from pace.version import __version__
from pace_sync.documents.outer_plan import (
    BoundaryWait,
    LayerPart,
    OuterBound,
    OuterFragment,
    OuterPlan,
    OuterPrediction,
    OuterRival,
)
from pace_sync.documents.outer_sync import OuterSync
from pace_sync.errors import InvalidSync
from pace_sync.planning.outer.lowering import (
    FragmentSend,
    Stretch,
    balanced_runs,
    cut_line,
    largest_first,
    most_fragments,
    steady_state_of,
    streaming_links,
    transfer_s,
)
from pace_sync.planning.outer.rivals import best_of_torchft, strided_fragments, torchft_fragments
from pace_sync.solver.streaming.capacity import fill_windows, least_period
from pace_sync.solver.streaming.one_link import send_in_order
from pace_sync.solver.streaming.steady_state import SteadyState

NEAR = 1e-6
MOST_COUNTS = 24
SPARE = 0.1


def plan_outer(problem: OuterSync, *, torchft: bool = False) -> OuterPlan:
    """Return the plan with the highest utilization found, and the bound of every plan.

    Layers that may be cut anywhere fill windows of steps, and attain the bound
    (``pace_sync.solver.streaming.capacity``). Whole layers are grouped in several ways and timed by a dynamic
    program that is exact for one link and a fixed order (``pace_sync.solver.streaming.one_link``). Groups are
    not timed if their bound (Theorem 1) already says that they are no better than the best so far. A plan is
    never worse than what torchft and the streaming DiLoCo paper do with the same limits.

    Parameters
    ----------
    torchft
        Plan only what torchft's DiLoCo can be told: equal turns, one delay, one link, whole layers.

    Raises
    ------
    InvalidSync
        For what is no outer-sync document, and for what torchft has no form for.
    """
    refuse_other(problem, OuterSync, InvalidSync)
    if torchft and problem.cutting == "none":
        count, steps = len(problem.layers), problem.period_steps
        if steps % count:
            raise InvalidSync(
                f"torchft needs a period_steps that is a multiple of its {count} fragments; it is {steps}"
            )
        delay = min(problem.max_delay_steps, steps // count - 1)
        best, method = torchft_fragments(problem, count, delay), "torchft's turns"
        return _document(problem, best, steady_state_of(problem, best), method)
    if torchft:
        best = best_of_torchft(problem)
        return _document(problem, best, steady_state_of(problem, best), "torchft's turns, best number")
    bound = least_period(streaming_links(problem), problem.size_bytes)
    best, method, state = [], "", None
    for least_s, make, how in _candidates(problem, bound):
        if state is not None and least_s >= state.period_s * (1 - NEAR):
            continue
        fragments = make()
        found = steady_state_of(problem, fragments)
        if state is None or found.period_s < state.period_s * (1 - NEAR):
            best, method, state = fragments, how, found
        if state.period_s <= bound * (1 + NEAR):
            break
    assert state is not None, "there is a way to send every model"
    spare = _with_spare(problem, best, state)
    return _document(problem, spare, steady_state_of(problem, spare), method)


# A bound on the period of fragments, what makes them, and the method in words.
_Candidate = tuple[float, Callable[[], list[FragmentSend]], str]


def _candidates(problem: OuterSync, bound_s: float) -> Iterator[_Candidate]:
    """Yield ways to make fragments, those that are likely to be best first."""
    sizes = [layer.size_bytes for layer in problem.layers]
    whole = [((number, 0, size),) for number, size in enumerate(sizes)]
    if problem.cutting == "none":
        yield _timed(problem, list(whole), "fragments as given, timed in their order")
        by_size = sorted(whole, key=lambda each: -each[0][2])
        yield _timed(problem, list(by_size), "fragments as given, the largest first")
        return
    if problem.cutting == "anywhere":
        yield bound_s, partial(_windowed, problem, bound_s), "windows of steps, filled in proportion"
    yield bound_s, partial(best_of_torchft, problem), "torchft's turns"
    for count in _counts(problem):
        for grouping, kind in ((balanced_runs, "runs"), (largest_first, "bins")):
            groups = [
                tuple(part for each in group for part in whole[each]) for group in grouping(sizes, count)
            ]
            yield _timed(problem, groups, f"{kind} of layers, timed by a dynamic program")
    if problem.max_fragments is None:
        yield bound_s, partial(strided_fragments, problem), "strided layers, evenly spaced"


def _counts(problem: OuterSync) -> list[int]:
    """Return numbers of fragments to try: all of them if they are few, and otherwise some of each size."""
    most = most_fragments(problem) if problem.cutting != "anywhere" else len(problem.layers)
    most = min(most, len(problem.layers), problem.max_fragments or most)
    if most <= MOST_COUNTS:
        return list(range(1, most + 1))
    return sorted({round(each) for each in np.geomspace(1, most, MOST_COUNTS)})


def _windowed(problem: OuterSync, bound_s: float) -> list[FragmentSend]:
    windows = fill_windows(streaming_links(problem), float(problem.size_bytes), bound_s)
    ends = np.cumsum([window.size_bytes for window in windows]).tolist()
    return [
        FragmentSend(
            parts=parts, link=window.link, send_step=window.send_step, delay_steps=window.delay_steps
        )
        for parts, window in zip(cut_line(problem, ends), windows, strict=True)
        if parts
    ]


def _timed(problem: OuterSync, groups: list[tuple[Stretch, ...]], method: str) -> _Candidate:
    """Put groups on links, the largest first; the candidate times each link's in their order.

    A group goes to the link whose own bound (Theorem 1) is then least.
    """
    loads = [0.0] * len(problem.links)
    waited = [problem.busy_s] * len(problem.links)
    window = problem.max_delay_steps * problem.busy_step_s
    of_link: list[list[int]] = [[] for _ in problem.links]
    sizes = [sum(size for _, _, size in group) for group in groups]
    for number in sorted(range(len(groups)), key=lambda each: -sizes[each]):
        taken_s = [transfer_s(problem, link, sizes[number]) for link in range(len(loads))]
        bounds = [
            (max(load + taken, wait + max(taken - window, 0.0), problem.busy_s), load + taken, link)
            for link, (load, wait, taken) in enumerate(zip(loads, waited, taken_s, strict=True))
        ]
        link = min(bounds)[2]
        loads[link] += taken_s[link]
        waited[link] += max(taken_s[link] - window, 0.0)
        of_link[link].append(number)
    numbers = {link: sorted(of_link[link]) for link in np.argsort(-np.array(loads), kind="stable").tolist()}
    return max(*loads, *waited), partial(_send_groups, problem, groups, numbers), method


def _send_groups(
    problem: OuterSync, groups: list[tuple[Stretch, ...]], of_link: dict[int, list[int]]
) -> list[FragmentSend]:
    """Time the groups of each link, which are given by number.

    The most loaded link comes first; the others make use of the waits that it needs anyway.
    """
    made: list[FragmentSend] = []
    waits = np.zeros(problem.period_steps)
    for link, numbers in of_link.items():
        if not numbers:
            continue
        sizes = [sum(size for _, _, size in groups[number]) for number in numbers]
        taken = np.array([transfer_s(problem, link, size) for size in sizes])
        times = send_in_order(taken, problem.busy_step_s + np.roll(waits, -1), problem.max_delay_steps)
        made += [
            FragmentSend(
                parts=groups[numbers[place]],
                link=link,
                send_step=times.send_steps[place],
                delay_steps=times.delays[place],
            )
            for place in times.sequence
        ]
        made.sort(key=lambda each: each.send_step)
        if len(problem.links) > 1:
            waits = steady_state_of(problem, made).wait_s
    return made


def _with_spare(problem: OuterSync, fragments: list[FragmentSend], state: SteadyState) -> list[FragmentSend]:
    """Apply a fragment a step later, within the limit, if its transfer would end just before it is needed."""
    steps, changed = problem.period_steps, []
    reached = np.concatenate([[0.0], np.cumsum(state.wait_s[:-1] + problem.busy_step_s)])
    for fragment, start, end in zip(fragments, state.start_s, state.end_s, strict=True):
        turns, due = divmod(fragment.send_step + fragment.delay_steps, steps)
        spare = turns * state.period_s + reached[due] - end
        if fragment.delay_steps < problem.max_delay_steps and spare < SPARE * (end - start):
            fragment = FragmentSend(
                parts=fragment.parts,
                link=fragment.link,
                send_step=fragment.send_step,
                delay_steps=fragment.delay_steps + 1,
            )
        changed.append(fragment)
    return changed


def _document(
    problem: OuterSync, fragments: list[FragmentSend], state: SteadyState, method: str
) -> OuterPlan:
    compute = problem.compute_s
    bound = max(least_period(streaming_links(problem), problem.size_bytes), _bound_of_whole_layers(problem))
    return OuterPlan(
        problem_sha256=problem.sha256,
        version=__version__,
        method=method,
        period_steps=problem.period_steps,
        fragments=tuple(
            OuterFragment(
                parts=tuple(
                    LayerPart(layer=problem.layers[layer].name, offset_bytes=offset, size_bytes=size)
                    for layer, offset, size in fragment.parts
                ),
                link=problem.links[fragment.link].name,
                send_step=fragment.send_step,
                delay_steps=fragment.delay_steps,
                start_s=float(start),
                end_s=float(end),
            )
            for fragment, start, end in zip(fragments, state.start_s, state.end_s, strict=True)
        ),
        waits=tuple(
            BoundaryWait(step=step, wait_s=wait)
            for step, wait in enumerate(state.wait_s.tolist())
            if wait > compute * 1e-12
        ),
        predicted=OuterPrediction(
            period_s=state.period_s,
            utilization=min(compute / state.period_s, 1.0),
            gap=max(state.period_s / bound - 1, 0.0),
            most_under_way=_most_under_way(fragments, problem.period_steps),
        ),
        bound=OuterBound(period_s=bound, utilization=min(compute / bound, 1.0)),
        rivals=_rivals(problem),
    )


def _bound_of_whole_layers(problem: OuterSync) -> float:
    """Return Theorem 1's bound from the largest layer alone, and from all, if each is a fragment.

    The sums of Theorem 1 over all links are sums over fragments, each over the link that is fastest for it.
    """
    if problem.cutting == "anywhere":
        return 0.0
    links = range(len(problem.links))
    sizes = [layer.size_bytes for layer in problem.layers]
    least = np.array([min(transfer_s(problem, link, size) for link in links) for size in sizes])
    waits = np.maximum(least - problem.max_delay_steps * problem.busy_step_s, 0.0)
    bound = problem.busy_s + float(np.max(waits))
    if problem.cutting == "none":
        bound = max(bound, float(np.sum(least)) / len(links))
        bound = max(bound, problem.busy_s + float(np.sum(waits)) / len(links))
    return bound


def _most_under_way(fragments: list[FragmentSend], steps: int) -> int:
    under_way = np.zeros(2 * steps, dtype=np.int64)
    for fragment in fragments:
        under_way[fragment.send_step : fragment.send_step + fragment.delay_steps + 1] += 1
    return int(np.max(under_way[:steps] + under_way[steps:]))


def _rivals(problem: OuterSync) -> tuple[OuterRival, ...]:
    if problem.cutting == "none":
        return ()
    ruled = (
        ("torchft, best settings", best_of_torchft(problem)),
        ("torchft, one fragment", torchft_fragments(problem, 1, problem.max_delay_steps)),
        ("streaming DiLoCo, three layers", strided_fragments(problem)),
    )
    return tuple(
        OuterRival(
            rule=rule,
            num_fragments=len(fragments),
            delay_steps=fragments[0].delay_steps,
            utilization=min(problem.compute_s / steady_state_of(problem, fragments).period_s, 1.0),
        )
        for rule, fragments in ruled
        if problem.max_fragments is None or len(fragments) <= problem.max_fragments
    )
