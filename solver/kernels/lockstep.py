"""Equal workers in lock step, compiled: one worker's pushes and pulls over its links to several servers."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.kernels.jackson import drop_first, push

# Of two messages that end within so small a part of their time of one another, rounding alone says which is
# first.
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
    """Take the waiting message of lowest rank, or return -1; in order, only the one planned next."""
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
def send_in_lockstep(
    ready: FloatArray,
    up_work: FloatArray,
    down_work: FloatArray,
    server: IntArray,
    by_rank: IntArray,
    num_servers: int,
    link_rate: float,
    connection_rate: float,
    shared: bool,
    latency: float,
    in_order: bool,
    times: FloatArray,
) -> None:
    """Send every message over its server's connection, one at a time there, active ones sharing the link.

    Writes push start, push end, pull start and pull end of every job to the four rows of `times`.
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
        active_up = 0
        active_down = 0
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
        sharing_up = active_up + active_down if shared else active_up
        sharing_down = active_up + active_down if shared else active_down
        rate_up = min(connection_rate, link_rate / max(sharing_up, 1))
        rate_down = min(connection_rate, link_rate / max(sharing_down, 1))
        step = np.inf
        for number in range(num_servers):
            if going_up[number] >= 0:
                step = min(step, left_up[number] / rate_up)
            if going_down[number] >= 0:
                step = min(step, left_down[number] / rate_down)
        following = now + step
        # What is released, or has been summed, before the next message ends changes who shares the link.
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
                if ends and left_up[number] / rate_up <= step * (1.0 + TOGETHER):
                    times[1, job] = following
                    pushed[num_pushed] = job
                    num_pushed += 1
                    going_up[number] = -1
                else:
                    left_up[number] = max(left_up[number] - (following - now) * rate_up, 0.0)
            job = going_down[number]
            if job >= 0:
                if ends and left_down[number] / rate_down <= step * (1.0 + TOGETHER):
                    times[3, job] = following
                    num_done += 1
                    going_down[number] = -1
                else:
                    left_down[number] = max(left_down[number] - (following - now) * rate_down, 0.0)
        now = following
