"""The fusion rules that PACE is compared with: which gradients they put into one buffer, and their window.

Only groupings are here, and a schedule's groups as settings of DDP and Horovod, for jobs that keep their own
communication. Systems that also reorder or partition are in ``pace.simulation``.
"""

import numpy as np

from pace.documents.schedule import Schedule
from pace.planning.fusion.problem import FusionProblem, Partition
from pace.solver.cost_curve import CostCurve

DDP_FIRST_BUCKET_BYTES = 1 << 20
DDP_BUCKET_BYTES = 25 << 20

MIB = 1 << 20


def ddp_buckets(
    problem: FusionProblem,
    *,
    first_bytes: int = DDP_FIRST_BUCKET_BYTES,
    bucket_bytes: int = DDP_BUCKET_BYTES,
) -> Partition:
    """Return PyTorch DDP's buckets: for each dtype, a bucket is closed once it has reached its limit.

    Gradients are in the order in which they become ready, as after DDP's first iteration. A bucket never
    splits a gradient, so it may exceed its limit. Buckets are sent in the order in which they are closed;
    those that never reach their limit come last. In PyTorch see ``compute_bucket_assignment_by_size`` and
    ``rebuild_buckets``.
    """
    buckets: list[tuple[int, ...]] = []
    limits: dict[int, int] = {}
    filling: dict[int, list[int]] = {}
    filled: dict[int, int] = {}
    for gradient in np.argsort(problem.ready, kind="stable").tolist():
        if not problem.sizes[gradient]:
            continue
        dtype = int(problem.dtypes[gradient])
        filling.setdefault(dtype, []).append(gradient)
        filled[dtype] = filled.get(dtype, 0) + int(problem.sizes[gradient])
        if filled[dtype] >= limits.get(dtype, first_bytes):
            buckets.append(tuple(filling.pop(dtype)))
            limits[dtype] = bucket_bytes
            filled[dtype] = 0
    return (*buckets, *(tuple(bucket) for bucket in filling.values()))


def mg_wfbp_groups(problem: FusionProblem) -> Partition:
    """Return MG-WFBP's merged gradients (Shi, Chu, Li 2019, Algorithm 1).

    Beginning with the gradient that is ready first, each is merged into the next one if two conditions hold:
    the next is ready before the all-reduce of this one would end, and either the network is busy until then
    anyway or waiting costs less than one latency.
    """
    groups = []
    for members in problem.classes():
        chain = problem.chain_of(members)
        latency = problem.cost.durations_s[0]
        free = 0.0
        first = 0
        for at in range(len(chain)):
            size = int(chain.sizes[first : at + 1].sum())
            start = max(free, float(chain.ready[at]))
            end = start + float(problem.cost(size))
            if at + 1 < len(chain):
                following = float(chain.ready[at + 1])
                if following < end and (start > following or following - start < latency):
                    continue
            groups.append(tuple(members[first : at + 1].tolist()))
            first, free = at + 1, end
    return tuple(groups)


def window_behind_barrier(problem: FusionProblem, partition: Partition, cost: CostCurve) -> float:
    """Return the window in seconds if groups are sent uncut, first in, first out, to a barrier.

    The forward pass starts when the last group has arrived. `problem` has the tails of gradients without the
    barrier, so the longest tail is the length of the forward pass.
    """
    buffers = problem.buffers(partition)
    now = 0.0
    for ready, duration in sorted(zip(buffers.ready.tolist(), cost(buffers.sizes).tolist(), strict=True)):
        now = max(now, ready) + duration
    return max(problem.compute_s, now + float(problem.tail.max(initial=0.0)))


def bucket_cap_mb_list(schedule: Schedule) -> list[float]:
    """Return ``bucket_cap_mb_list`` for PyTorch's DistributedDataParallel: the groups' sizes in MiB.

    DDP fills buckets in the order in which gradients become ready, and closes each when it reaches its cap.
    So with these caps its buckets are the schedule's groups. Groups without bytes are left out.
    """
    return [group.size_bytes / MIB for group in schedule.groups if group.size_bytes]


def horovod_groups(schedule: Schedule) -> list[list[str]]:
    """Return the gradients' names for ``groups=`` of Horovod's DistributedOptimizer.

    Replace each name by its parameter. Horovod keeps groups apart only with HOROVOD_DISABLE_GROUP_FUSION=1
    and a fusion threshold that is at least the size of the largest group.
    """
    return [list(group.tensors) for group in schedule.groups]
