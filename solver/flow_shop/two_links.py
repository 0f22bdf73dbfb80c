"""The two-link problem F2 | r_j, q_j | max(D_j + q_j): jobs are pushed over one link and pulled over another.

A job is a tensor or a part of one. It has a ready time r, a push time u on the uplink, a pull time d on the
downlink and a tail q. Its pull starts when its push has ended, at the earliest. Times are in seconds.

If pull time / push time is the same for all jobs, longest tail first is optimal in the limit of small parts
(``lockstep.best_partition_bytes``). Otherwise it is not. Johnson's order is optimal without ready times and
tails. The search by insertion is 0.3 % above the optimum on average, on instances small enough to know the
optimum.
"""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoLinks:
    """Jobs of the two-link problem.

    Attributes
    ----------
    ready, push, pull, tail : arrays of shape (num_jobs,)
        Finite and not negative.
    """

    ready: FloatArray
    push: FloatArray
    pull: FloatArray
    tail: FloatArray

    def __len__(self) -> int:
        return len(self.ready)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoLinkSolution:
    """A schedule without preemption, in which each link carries one job at a time.

    Attributes
    ----------
    push_order : integer array of shape (num_jobs,)
        The jobs in the order in which the link of pushes serves them.
    push_starts, push_ends, pull_starts, pull_ends : arrays of shape (num_jobs,)
        When each job's push and pull start and end, in seconds.
    objective : float
        max(pull end + tail); 0 without jobs.
    """

    push_order: IntArray
    push_starts: FloatArray
    push_ends: FloatArray
    pull_starts: FloatArray
    pull_ends: FloatArray
    objective: float


def timed(
    instance: TwoLinks, push_starts: FloatArray, pull_starts: FloatArray, *, push_order: IntArray
) -> TwoLinkSolution:
    """Return the solution with these starts, in seconds by job."""
    pull_ends = pull_starts + instance.pull
    return TwoLinkSolution(
        push_order=push_order,
        push_starts=push_starts,
        push_ends=push_starts + instance.push,
        pull_starts=pull_starts,
        pull_ends=pull_ends,
        objective=float(np.max(pull_ends + instance.tail, initial=0.0)),
    )


def johnson_order(push: FloatArray, pull: FloatArray) -> IntArray:
    """Return the jobs in Johnson's order (1954), in O(n log n).

    It minimizes the makespan on two machines in a row.
    Jobs with push < pull come first, by increasing push; then the others, by decreasing pull. Ties are broken
    by index. `push` and `pull` have the shape (num_jobs,).
    """
    shorter_up = push < pull
    first = np.flatnonzero(shorter_up)
    last = np.flatnonzero(~shorter_up)
    return np.concatenate(
        [first[np.argsort(push[first], kind="stable")], last[np.argsort(-pull[last], kind="stable")]]
    )


def longest_tail_order(instance: TwoLinks) -> IntArray:
    """Return the jobs by longest tail; ties by ready time, then by index."""
    return np.lexsort((instance.ready, -instance.tail))


def serve_by_rank(instance: TwoLinks, by_rank: IntArray) -> TwoLinkSolution:
    """Schedule both links by one ranking: a free link takes the released job that is first in `by_rank`.

    No link idles while a job is released, and no job is preempted. O(n log n).
    """
    from pace.solver.kernels import two_links as kernel

    push_starts, pull_starts = np.empty(len(instance)), np.empty(len(instance))
    by_ready = np.argsort(instance.ready, kind="stable")
    kernel.serve_by_rank(instance.ready, instance.push, by_ready, by_rank, push_starts)
    push_ends = push_starts + instance.push
    by_arrival = np.lexsort((push_starts, push_ends))
    kernel.serve_by_rank(push_ends, instance.pull, by_arrival, by_rank, pull_starts)
    return timed(instance, push_starts, pull_starts, push_order=np.lexsort((push_ends, push_starts)))


def longest_tail_first(instance: TwoLinks) -> TwoLinkSolution:
    """Schedule both links by longest tail, without preemption, in O(n log n).

    Guarantee: with pull = push the objective is at most C* + 2 p_max, and at most twice the optimum.
    """
    return serve_by_rank(instance, longest_tail_order(instance))


def serve_in_order(instance: TwoLinks, order: IntArray) -> TwoLinkSolution:
    """Schedule both links strictly in one order: a link waits for the next job even if others could go."""
    push_starts, pull_starts = np.empty(len(instance)), np.empty(len(instance))
    free_up = free_down = 0.0
    for job in order.tolist():
        push_starts[job] = max(free_up, instance.ready[job])
        free_up = push_starts[job] + instance.push[job]
        pull_starts[job] = max(free_down, free_up)
        free_down = pull_starts[job] + instance.pull[job]
    return timed(instance, push_starts, pull_starts, push_order=order)


def insertion_search(instance: TwoLinks) -> TwoLinkSolution:
    """Search for one order for both links: insert job by job, then move single jobs until no move helps.

    It starts from the orders by tail, by Johnson and by ready time, and from the order in which the jobs are
    best inserted. The result is the best schedule found; longest tail first without idling is also
    considered. A heuristic without a guarantee; each round of moves takes O(n^3).
    """
    from pace.solver.kernels import two_links as kernel

    best = longest_tail_first(instance)
    if not len(instance):
        return best
    arrays = (instance.ready, instance.push, instance.pull, instance.tail)
    by_tail = longest_tail_order(instance)
    inserted = np.empty(len(instance), dtype=np.int64)
    kernel.insert_one_by_one(*arrays, by_tail, inserted)
    seeds = (
        by_tail,
        johnson_order(instance.push, instance.pull),
        np.argsort(instance.ready, kind="stable"),
        best.push_order,
        inserted,
    )
    for seed in seeds:
        order = seed.copy()
        if kernel.reinsert(*arrays, order) < best.objective:
            best = serve_in_order(instance, order)
    return best
