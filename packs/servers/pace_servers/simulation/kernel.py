"""The events of workers, servers and links, compiled.

At every moment, in this order: what ends now is booked (ops, sums, returned credit), workers hand over what
their credit admits, free connections start what is handed over, and links are shared anew.
"""

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.compiled import compiled_in_place
from pace_servers.simulation.hand_over import (
    hand_over,
    queue_push,
    receive,
    return_credit,
    start_pulls,
    start_pushes,
)
from pace_servers.simulation.heaps import (
    ARRIVES,
    CREDIT,
    OP_ENDS,
    drop_event,
    is_due,
    put_event,
)
from pace_servers.simulation.inputs import ServerLinks, ServerParts, WindowDag
from pace_servers.simulation.state import (
    EventHeap,
    FlowState,
    PushState,
    ServersState,
    WindowState,
)
from pace_servers.simulation.traffic import ServersRules

# Links whose fair shares differ by rounding alone fill up together.
EQUAL = 1.0 + 1e-12


@compiled_in_place
def share(
    active: IntArray,
    count: int,
    first_link: IntArray,
    second_link: IntArray,
    capacity: FloatArray,
    most: float,
    rates: FloatArray,
    left: FloatArray,
    counts: IntArray,
    full: BoolArray,
) -> None:
    """Write the max-min fair rates of the first `count` `active` flows to `rates`, none above `most`.

    Progressive filling: the link with the smallest fair share fixes the rates of its flows, and the other
    flows share the rest. `left`, `counts` and `full` are scratch space, one entry for each link. Takes
    O(links * (links + flows)).
    """
    links = len(capacity)
    for link in range(links):
        left[link], counts[link] = capacity[link], 0
    open_flows = count
    for flow in active[:count]:
        counts[first_link[flow]] += 1
        counts[second_link[flow]] += 1
        rates[flow] = -1.0
    while open_flows > 0:
        least = np.inf
        for link in range(links):
            if counts[link] > 0:
                least = min(least, left[link] / counts[link])
        capped = most <= least
        level = most if capped else least
        for link in range(links):
            full[link] = counts[link] > 0 and left[link] / counts[link] <= least * EQUAL
        for flow in active[:count]:
            if rates[flow] == -1.0 and (capped or full[first_link[flow]] or full[second_link[flow]]):
                rates[flow] = level
                for link in (first_link[flow], second_link[flow]):
                    left[link] = max(left[link] - level, 0.0)
                    counts[link] -= 1
                open_flows -= 1


TOGETHER = 1.0 + 1e-12


@compiled_in_place
def run(
    duration: FloatArray,
    dag: WindowDag,
    parts: ServerParts,
    links: ServerLinks,
    rules: ServersRules,
    staleness: int,
    state: ServersState,
    window_ends: FloatArray,
    times: FloatArray,
) -> int:
    """Run all windows; write window ends and every partition's times; return how many windows all have run.

    `duration` has shape (windows, workers, ops), `times` (windows, workers, parts, 4): push start, push end,
    pull start, pull end.
    """
    windows, pushes, pulls, flows, events = state
    workers = len(windows.number)
    begin_windows(windows, dag, duration, events, 0.0)
    most = links.pace if rules.paced else np.inf
    now = 0.0
    while True:
        again = True
        while again:
            while is_due(events, now):
                kind, worker, at = drop_event(events)
                if kind == OP_ENDS:
                    end_op(windows, pushes, dag, parts, rules, duration, events, worker, at, now)
                elif kind == CREDIT:
                    return_credit(pushes, parts, rules, worker, at)
                else:
                    receive(pulls, pushes.sequence, parts, rules, staleness, windows.number, worker, at)
            for worker in range(workers):
                if pushes.stirred[worker]:
                    hand_over(pushes, parts, rules, windows.number[worker], worker)
            if pushes.handed.total[0] > 0:
                start_pushes(pushes.handed, flows, parts, links, rules, events, windows.number, times, now)
            if pulls.answering.total[0] > 0:
                start_pulls(pulls, flows, parts, links, rules, windows.number, times, now)
            again = flows.num_ended[0] > 0
            if again:
                end_pulls(windows, flows, dag, parts, links, rules, duration, events, times, now)
            again = again or is_due(events, now)
        if end_windows(windows, pushes.stirred, window_ends, now):
            begin_windows(windows, dag, duration, events, now)
            continue
        if flows.stale[0]:
            share_links(flows, links, most)
            flows.stale[0] = False
        following = carry_on(flows, links, rules, events, windows.number, times, now)
        if following == np.inf:
            break
        now = following
    done = windows.number[0]
    for worker in range(workers):
        done = min(done, windows.number[worker])
    return int(done)


@compiled_in_place
def share_links(flows: FlowState, links: ServerLinks, most: float) -> None:
    """Give the flows that links carry their rates."""
    share(
        flows.active,
        flows.num_active[0],
        links.first_link,
        links.second_link,
        links.capacity,
        most,
        flows.rates,
        flows.link_left,
        flows.link_flows,
        flows.link_full,
    )


@compiled_in_place
def begin_windows(
    windows: WindowState, dag: WindowDag, duration: FloatArray, events: EventHeap, now: float
) -> None:
    """Begin the windows whose workers have ended the one before, and the ops that wait for nothing."""
    for worker in range(len(windows.starting)):
        if not windows.starting[worker]:
            continue
        windows.starting[worker] = False
        windows.to_do[worker] = len(dag.num_predecessors) + dag.first_part[-1]
        for group in range(len(dag.group_producers)):
            windows.groups_missing[worker, group] = dag.group_producers[group]
            windows.parts_missing[worker, group] = dag.first_part[group + 1] - dag.first_part[group]
        for op in range(len(dag.num_predecessors)):
            windows.missing[worker, op] = dag.num_predecessors[op]
            if dag.num_predecessors[op] == 0:
                ends = now + duration[windows.number[worker], worker, op]
                put_event(events, ends, OP_ENDS, worker, op)


@compiled_in_place
def count_down(
    windows: WindowState, duration: FloatArray, events: EventHeap, worker: int, op: int, now: float
) -> None:
    """Note that one thing an op waits for has ended; start the op if it was the last."""
    windows.missing[worker, op] -= 1
    if windows.missing[worker, op] == 0:
        ends = now + duration[windows.number[worker], worker, op]
        put_event(events, ends, OP_ENDS, worker, op)


@compiled_in_place
def end_op(
    windows: WindowState,
    pushes: PushState,
    dag: WindowDag,
    parts: ServerParts,
    rules: ServersRules,
    duration: FloatArray,
    events: EventHeap,
    worker: int,
    op: int,
    now: float,
) -> None:
    """Book the end of an op: others that waited for it start, and groups that are complete are pushed."""
    windows.to_do[worker] -= 1
    for at in range(dag.first_successor[op], dag.first_successor[op + 1]):
        count_down(windows, duration, events, worker, dag.successors[at], now)
    for at in range(dag.first_op_group[op], dag.first_op_group[op + 1]):
        group = dag.op_groups[at]
        windows.groups_missing[worker, group] -= 1
        if windows.groups_missing[worker, group] == 0:
            for part in range(dag.first_part[group], dag.first_part[group + 1]):
                queue_push(pushes, parts, rules, windows.number[worker], worker, part)


@compiled_in_place
def end_pulls(
    windows: WindowState,
    flows: FlowState,
    dag: WindowDag,
    parts: ServerParts,
    links: ServerLinks,
    rules: ServersRules,
    duration: FloatArray,
    events: EventHeap,
    times: FloatArray,
    now: float,
) -> None:
    """End the pulls that their links have carried or that needed none."""
    first_pull = len(flows.carried) // 2
    of_worker = links.num_servers * rules.streams
    for at in range(flows.num_ended[0]):
        flow = flows.ended[at]
        part = flows.carried[flow]
        flows.carried[flow] = -1
        worker = (flow - first_pull) // of_worker
        times[windows.number[worker], worker, part, 3] = now
        windows.to_do[worker] -= 1
        if rules.until_pulled:
            put_event(events, now, CREDIT, worker, part)
        group = parts.group[part]
        windows.parts_missing[worker, group] -= 1
        if windows.parts_missing[worker, group] == 0:
            for waiter in range(dag.first_waiter[group], dag.first_waiter[group + 1]):
                count_down(windows, duration, events, worker, dag.waiters[waiter], now)
    flows.num_ended[0] = 0


@compiled_in_place
def end_windows(windows: WindowState, stirred: BoolArray, window_ends: FloatArray, now: float) -> bool:
    """End the windows in which nothing is left to do; return whether another one follows."""
    begins = False
    for worker in range(len(windows.to_do)):
        if windows.to_do[worker] == 0:
            windows.to_do[worker] = -1
            window_ends[windows.number[worker], worker] = now
            windows.number[worker] += 1
            windows.starting[worker] = windows.number[worker] < len(window_ends)
            stirred[worker] = windows.starting[worker]
            begins = begins or windows.starting[worker]
    return begins


@compiled_in_place
def carry_on(
    flows: FlowState,
    links: ServerLinks,
    rules: ServersRules,
    events: EventHeap,
    windows: IntArray,
    times: FloatArray,
    now: float,
) -> float:
    """Carry bytes until the next event or the next message's end; return that moment, or infinity."""
    active, carried, left, rates = flows.active, flows.carried, flows.left, flows.rates
    count = flows.num_active[0]
    step = np.inf
    for at in range(count):
        step = min(step, left[active[at]] / rates[active[at]])
    following = now + step
    ends_flow = events.size[0] == 0 or events.times[0] >= following
    if not ends_flow:
        following = events.times[0]
    if following == np.inf:
        return np.inf
    first_pull = len(carried) // 2
    of_worker = links.num_servers * rules.streams
    kept = 0
    for at in range(count):
        flow = active[at]
        if not ends_flow or left[flow] / rates[flow] > step * TOGETHER:
            left[flow] = max(left[flow] - (following - now) * rates[flow], 0.0)
            active[kept] = flow
            kept += 1
        elif flow < first_pull:
            worker, part = flow // of_worker, carried[flow]
            carried[flow] = -1
            times[windows[worker], worker, part, 1] = following
            put_event(events, following + links.round_trip_s, ARRIVES, worker, part)
            if not rules.until_pulled:
                returns = links.round_trip_s if rules.acknowledged else 0.0
                put_event(events, following + returns, CREDIT, worker, part)
        else:
            flows.ended[flows.num_ended[0]] = flow
            flows.num_ended[0] += 1
    flows.stale[0] = flows.stale[0] or kept < count
    flows.num_active[0] = kept
    return following
