"""Equal workers in lock step, compiled: one worker's pushes and pulls over its links to several servers."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.kernels.jackson import drop_first, push

# Two messages whose ends differ by a smaller share of their time than this end together: the difference is
# rounding.
TOGETHER = 1e-12


@compiled
def start_next(
    waiting: IntArray,
    num_waiting: IntArray,
    server: int,
    by_rank: IntArray,
    next_place: IntArray,
    in_order: bool,
    place_on_server: IntArray,
) -> int:
    """Remove and return the next waiting message of a server, by rank or the one planned next; else -1."""
    if num_waiting[server] == 0:
        return -1
    job = int(by_rank[waiting[server, 0]])
    if in_order and place_on_server[job] != next_place[server]:
        return -1
    drop_first(waiting[server], num_waiting[server])
    num_waiting[server] -= 1
    next_place[server] += 1
    return job


@compiled
def share_hosts(
    pushed: int, pulled: int, both: int, workers: int, host_rate: float, rates: FloatArray
) -> None:
    """Write the rates of messages between `workers` hosts, the first of which are the servers.

    `pushed` servers are only pushed to, `pulled` only pulled from, `both` both. A message goes to its server
    from all other hosts, or from its server to all of them, everywhere at one rate. `rates` has four: of
    pushes to the first kind of servers, pulls from the second, pushes and pulls of the third. They are
    max-min fair: the link with the least share fixes what crosses it, and the rest share what is left.
    """
    crossing = np.zeros((8, 4))
    hosts = (pushed, pulled, both, workers - pushed - pulled - both)
    for kind in range(4):
        # Row `kind` is the link out of such a host, row 4 + kind the link into it.
        crossing[kind, 0], crossing[kind, 2] = pushed - (kind == 0), both - (kind == 2)
        crossing[4 + kind, 1], crossing[4 + kind, 3] = pulled - (kind == 1), both - (kind == 2)
    crossing[1, 1] = crossing[2, 3] = crossing[4, 0] = crossing[6, 2] = workers - 1
    left = np.full(8, host_rate)
    unfixed = np.array([pushed > 0, pulled > 0, both > 0, both > 0])
    rates[:] = 0.0
    while unfixed.any():
        level = np.inf
        for link in range(8):
            count = 0.0
            for message in range(4):
                count += crossing[link, message] * unfixed[message]
            if hosts[link % 4] > 0 and count > 0.0:
                level = min(level, left[link] / count)
        fixed = np.zeros(4, dtype=np.bool_)
        for link in range(8):
            count = 0.0
            for message in range(4):
                count += crossing[link, message] * unfixed[message]
            if hosts[link % 4] > 0 and count > 0.0 and left[link] / count <= level * (1.0 + TOGETHER):
                for message in range(4):
                    fixed[message] |= unfixed[message] and crossing[link, message] > 0.0
        for message in range(4):
            if fixed[message]:
                rates[message] = level
                unfixed[message] = False
                for link in range(8):
                    left[link] = max(left[link] - crossing[link, message] * level, 0.0)


@compiled
def send_in_lockstep(
    ready: FloatArray,
    up_work: FloatArray,
    down_work: FloatArray,
    server: IntArray,
    by_rank: IntArray,
    num_servers: int,
    link_rate: float,
    connection_rate: float,
    colocated_workers: int,
    latency: float,
    in_order: bool,
    times: FloatArray,
) -> None:
    """Send every message over its server's connection, one at a time; active messages share links.

    With `colocated_workers`, these are the links between the workers' hosts, which are also the servers.
    Writes the start and end of each message's push, and of its pull, to the four rows of `times`. The other
    arrays have the shape (num_parts,); rates are in the unit of the work per second.
    """
    n = len(ready)
    rank = np.empty(n, dtype=np.int64)
    place_on_server = np.empty(n, dtype=np.int64)
    counts = np.zeros(num_servers, dtype=np.int64)
    for place in range(n):
        job = by_rank[place]
        rank[job] = place
        place_on_server[job] = counts[server[job]]
        counts[server[job]] += 1
    most = 0
    for number in range(num_servers):
        most = max(most, counts[number])
    up_waiting = np.empty((num_servers, most + 1), dtype=np.int64)
    down_waiting = np.empty((num_servers, most + 1), dtype=np.int64)
    num_up, num_down = np.zeros(num_servers, dtype=np.int64), np.zeros(num_servers, dtype=np.int64)
    next_up, next_down = np.zeros(num_servers, dtype=np.int64), np.zeros(num_servers, dtype=np.int64)
    going_up = np.full(num_servers, -1, dtype=np.int64)
    going_down = np.full(num_servers, -1, dtype=np.int64)
    left_up, left_down = np.zeros(num_servers), np.zeros(num_servers)
    rates_up, rates_down = np.zeros(num_servers), np.zeros(num_servers)
    rates = np.zeros(4)
    by_ready = np.argsort(ready, kind="mergesort")
    upcoming = 0
    pushed = np.empty(n, dtype=np.int64)
    num_pushed = 0
    first_pushed = 0
    num_done = 0
    now = 0.0
    while num_done < n:
        while upcoming < n and ready[by_ready[upcoming]] <= now:
            job = by_ready[upcoming]
            push(up_waiting[server[job]], num_up[server[job]], rank[job])
            num_up[server[job]] += 1
            upcoming += 1
        while first_pushed < num_pushed and times[1, pushed[first_pushed]] + latency <= now:
            job = pushed[first_pushed]
            push(down_waiting[server[job]], num_down[server[job]], rank[job])
            num_down[server[job]] += 1
            first_pushed += 1
        active_up = active_down = active_both = 0
        for number in range(num_servers):
            if going_up[number] < 0:
                job = start_next(up_waiting, num_up, number, by_rank, next_up, in_order, place_on_server)
                if job >= 0:
                    going_up[number] = job
                    left_up[number] = up_work[job]
                    times[0, job] = now
            if going_down[number] < 0:
                job = start_next(
                    down_waiting, num_down, number, by_rank, next_down, in_order, place_on_server
                )
                if job >= 0:
                    going_down[number] = job
                    left_down[number] = down_work[job]
                    times[2, job] = now
            active_up += going_up[number] >= 0
            active_down += going_down[number] >= 0
            active_both += going_up[number] >= 0 and going_down[number] >= 0
        if colocated_workers:
            host_rate = connection_rate * (colocated_workers - 1)
            only_up, only_down = active_up - active_both, active_down - active_both
            share_hosts(only_up, only_down, active_both, colocated_workers, host_rate, rates)
        else:
            rates[0] = rates[2] = min(connection_rate, link_rate / max(active_up, 1))
            rates[1] = rates[3] = min(connection_rate, link_rate / max(active_down, 1))
        for number in range(num_servers):
            both = going_up[number] >= 0 and going_down[number] >= 0
            rates_up[number] = rates[2] if both else rates[0]
            rates_down[number] = rates[3] if both else rates[1]
        step = np.inf
        for number in range(num_servers):
            if going_up[number] >= 0:
                step = min(step, left_up[number] / rates_up[number])
            if going_down[number] >= 0:
                step = min(step, left_down[number] / rates_down[number])
        following = now + step
        # A message that may start before the next one ends changes the shares of the link.
        ends = True
        if upcoming < n and ready[by_ready[upcoming]] < following:
            following = ready[by_ready[upcoming]]
            ends = False
        if first_pushed < num_pushed and times[1, pushed[first_pushed]] + latency < following:
            following = times[1, pushed[first_pushed]] + latency
            ends = False
        if following == np.inf:
            break
        for number in range(num_servers):
            job = going_up[number]
            if job >= 0:
                if ends and left_up[number] / rates_up[number] <= step * (1.0 + TOGETHER):
                    times[1, job] = following
                    pushed[num_pushed] = job
                    num_pushed += 1
                    going_up[number] = -1
                else:
                    left_up[number] = max(left_up[number] - (following - now) * rates_up[number], 0.0)
            job = going_down[number]
            if job >= 0:
                if ends and left_down[number] / rates_down[number] <= step * (1.0 + TOGETHER):
                    times[3, job] = following
                    num_done += 1
                    going_down[number] = -1
                else:
                    left_down[number] = max(left_down[number] - (following - now) * rates_down[number], 0.0)
        now = following
