"""Senders of reduce-scatters and all-gathers: other sharded optimizers, DeAR, and PACE's schedules.

Sources: Megatron-LM's distributed optimizer (NVIDIA/Megatron-LM, megatron/core/distributed:
``DistributedDataParallelConfig`` and ``_ParamAndGradBuffer``), PyTorch's ``ZeroRedundancyOptimizer``
(torch/distributed/optim/zero_redundancy_optimizer.py), DeAR (Zhang et al., ICDCS 2023;
lzhangbv/dear_pytorch).
"""

from dataclasses import dataclass

import numpy as np

from pace.collectives import halved
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.planning.frameworks.grouping_rules import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES, ddp_buckets
from pace.planning.fusion.problem import FusionProblem, Partition
from pace.planning.sharded.optimize import sharded_plan_for
from pace.planning.sharded.plans import ShardedPlan
from pace.planning.sharded.problem import NORM_BYTES
from pace.simulation.grouped import carriers, over_groups
from pace.simulation.knobs import Bytes, SomeBytes, knobs
from pace.simulation.traffic import Rules, Traffic
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost_curve import CostCurve
from pace.solver.least_bytes import least_bytes_servers
from pace.solver.two_halves.calls import dependencies

MEGATRON_LEAST_PARAMETERS = 40_000_000
MEGATRON_PARAMETERS_PER_RANK = 1_000_000


def norm_s(profile: Profile) -> float | None:
    """Return how many seconds ranks with shards exchange their norms; None if no update waits for one."""
    return float(profile.clocked_cost(NORM_BYTES)) if profile.update == "global-norm" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BothHalves:
    """Sends first halves when groups become ready, then the norm if there is one, then all second halves.

    Attributes
    ----------
    groups, second_groups
        The gradients of each call of the first and the second half, in sending order.
    first_s, second_s : arrays of shape (num_calls,)
        The durations of these calls in seconds.
    norm_s
        How long the norm takes, in seconds; None without one.
    """

    groups: Partition
    second_groups: Partition
    sizes: IntArray
    first_s: FloatArray
    second_s: FloatArray
    norm_s: float | None
    rules: Rules

    def traffic(self, ready_s: FloatArray) -> Traffic:
        """Send first halves first in, first out, and everything else after them."""
        count, following = len(self.groups), len(self.second_groups)
        ready = over_groups(np.maximum, ready_s, self.groups) if count else np.zeros(0)
        norm = [] if self.norm_s is None or not count else [self.norm_s]
        begin = count + len(norm)
        last = int(np.argmax(ready)) if count else -1
        behind = float(ready.max(initial=0.0)) + 1
        total = [int(self.sizes[list(group)].sum()) for group in (*self.groups, *self.second_groups)]
        return Traffic(
            release_s=np.concatenate([ready, np.zeros(len(norm) + following)]),
            duration_s=np.concatenate([self.first_s, norm, self.second_s]),
            size_bytes=np.array([*total[:count], *[NORM_BYTES] * len(norm), *total[count:]], dtype=np.int64),
            priority=np.concatenate([ready, behind + np.arange(len(norm) + following)]),
            after=np.concatenate(
                [
                    np.full(count, -1),
                    np.full(len(norm), last),
                    np.full(following, count if norm else last),
                ]
            ).astype(np.int64),
            carriers=tuple(
                calls + begin for calls in carriers(self.second_groups, np.arange(following), len(ready_s))
            ),
        )


@knobs
class Dear:
    """DeAR (Zhang et al., ICDCS 2023): reduce-scatter in backward, all-gather before the forward use.

    Attributes
    ----------
    group_bytes
        Groups are filled in forward order up to this size.
    """

    group_bytes: Bytes = 25_000_000

    def prepare(self, profile: Profile) -> BothHalves:
        """Fuse in forward order."""
        problem = FusionProblem.of(profile, barrier=False)
        groups: list[tuple[int, ...]] = []
        for members in problem.classes():
            forward = members[np.argsort(-problem.tail[members], kind="stable")]
            group: list[int] = []
            filled = 0
            for gradient in forward.tolist():
                size = int(problem.sizes[gradient])
                if group and filled + size > self.group_bytes:
                    groups.append(tuple(group))
                    group, filled = [], 0
                group.append(gradient)
                filled += size
            groups.append(tuple(group))
        return _same_groups(profile, problem, tuple(groups), barrier=False)


@knobs
class ZeroOne:
    """ZeRO-1 with the overlap of Megatron's distributed optimizer: reduce-scatters, the update, all-gathers.

    Buckets are filled in backward order until they hold ``max(40,000,000, 1,000,000 x ranks)`` parameters. No
    parameter is split. The optimizer steps after the last reduce-scatter, with or without a norm. Gathers are
    sent in forward order without pauses. This is no later than in Megatron, which starts one when the
    previous one is waited for.

    Attributes
    ----------
    bucket_parameters
        Number of parameters in a bucket; 0 for Megatron's rule.
    overlap_gather
        ``--overlap-param-gather``. Without it the forward pass waits for all gathers.
    """

    bucket_parameters: Bytes = 0
    overlap_gather: bool = True

    def prepare(self, profile: Profile) -> BothHalves:
        """Fill buckets in the order in which gradients become ready."""
        problem = FusionProblem.of(profile, barrier=False)
        rule = max(MEGATRON_LEAST_PARAMETERS, MEGATRON_PARAMETERS_PER_RANK * profile.workers)
        most = self.bucket_parameters or rule
        buckets: list[tuple[int, ...]] = []
        for members in problem.classes():
            bucket: list[int] = []
            filled = 0
            for gradient in members.tolist():
                bucket.append(gradient)
                filled += int(problem.sizes[gradient] // problem.element_bytes[gradient])
                if filled >= most:
                    buckets.append(tuple(bucket))
                    bucket, filled = [], 0
            if bucket:
                buckets.append(tuple(bucket))
        return _same_groups(profile, problem, tuple(buckets), barrier=not self.overlap_gather)


def _same_groups(profile: Profile, problem: FusionProblem, groups: Partition, *, barrier: bool) -> BothHalves:
    """Return a sender with the same groups in both halves, the second half in order of first use."""
    sizes = np.array([problem.sizes[list(group)].sum() for group in groups], dtype=np.int64)
    first, second = _halves(profile)
    use = np.array([-problem.tail[list(group)].max() for group in groups])
    order = np.argsort(use, kind="stable").tolist()
    return BothHalves(
        groups=groups,
        second_groups=tuple(groups[at] for at in order),
        sizes=problem.sizes,
        first_s=first(sizes),
        second_s=second(sizes[order]) if order else np.zeros(0),
        norm_s=norm_s(profile),
        rules=Rules(sharded=True, barrier=barrier),
    )


def _halves(profile: Profile) -> tuple[CostCurve, CostCurve]:
    try:
        return profile.clocked_half_costs
    except ValueError:  # with parameter servers, push and pull are the halves
        half = halved(profile.clocked_cost)
        return half, half


@knobs
class ZeroRedundancy:
    """PyTorch's ZeroRedundancyOptimizer with DDP: all-reduces, each rank's update, broadcasts, a barrier.

    Whole parameters are assigned to ranks, the largest first, each to the rank with the fewest
    (``_partition_parameters``). After the step every rank broadcasts the parameters that it has updated
    (``_sync_params``), and nothing overlaps with that. A broadcast takes as long as an all-gather of the same
    bytes here, which is no longer than on a ring.

    Attributes
    ----------
    as_bucket_view
        ``parameters_as_bucket_view``: one broadcast for each rank instead of one for each parameter.
    first_bytes, bucket_bytes
        DDP's limits of the first bucket and of the others.
    """

    as_bucket_view: bool = False
    first_bytes: Bytes = DDP_FIRST_BUCKET_BYTES
    bucket_bytes: SomeBytes = DDP_BUCKET_BYTES

    def prepare(self, profile: Profile) -> BothHalves:
        """Assign buckets as DDP does, and parameters to ranks."""
        problem = FusionProblem.of(profile, barrier=False)
        buckets = ddp_buckets(problem, first_bytes=self.first_bytes, bucket_bytes=self.bucket_bytes)
        sent = np.flatnonzero(problem.sizes)
        largest = sent[np.argsort(-problem.sizes[sent], kind="stable")]
        ranks = least_bytes_servers(problem.sizes[largest].tolist(), profile.workers)
        owned: dict[int, list[int]] = {}
        for gradient, rank in zip(largest.tolist(), ranks, strict=True):
            owned.setdefault(rank, []).append(gradient)
        per_rank = tuple(tuple(owned[rank]) for rank in sorted(owned))
        broadcasts = (
            per_rank
            if self.as_bucket_view
            else tuple((gradient,) for group in per_rank for gradient in group)
        )
        _, gather = _halves(profile)
        moved = np.array([problem.sizes[list(group)].sum() for group in broadcasts], dtype=np.int64)
        reduced = np.array([problem.sizes[list(group)].sum() for group in buckets], dtype=np.int64)
        return BothHalves(
            groups=buckets,
            second_groups=broadcasts,
            sizes=problem.sizes,
            first_s=problem.cost(reduced),
            second_s=gather(moved),
            norm_s=None,  # every rank has all gradients and computes the norm itself
            rules=Rules(sharded=True, barrier=True),
        )


@knobs
class Sharded:
    """PACE's sharded schedules: segments in planned order."""

    def prepare(self, profile: Profile) -> "PlannedHalves":
        """Optimize for the profile."""
        plan = sharded_plan_for(profile, Options(exchange="sharded"))
        first, second = profile.clocked_half_costs
        return PlannedHalves(
            plan=plan,
            reduce_scatter=first,
            all_gather=second,
            norm_s=norm_s(profile),
            num_gradients=len(profile.gradients),
            rules=Rules(in_order=True, sharded=True),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedHalves:
    """Sends a plan's segments strictly in order; each gather waits for the reduce-scatters that it needs."""

    plan: ShardedPlan
    reduce_scatter: CostCurve
    all_gather: CostCurve
    norm_s: float | None
    num_gradients: int
    rules: Rules

    def traffic(self, ready_s: FloatArray) -> Traffic:
        """Release reduce-scatters when their gradients are ready; the norm follows the last of them."""
        plan, sending = self.plan, self.plan.sending
        count = len(plan.scattered)
        calls, sizes = sending.calls.tolist(), plan.segment_bytes().tolist()
        ready = [float(ready_s[list(group)].max()) for group in plan.scattered.members]
        needs: dict[int, list[int]] = {}
        for before, after in dependencies(plan.scattered, plan.gathered).tolist():
            needs.setdefault(count + after, []).append(before)
        release: list[float] = []
        duration: list[float] = []
        moved: list[int] = []
        after_: list[int] = []
        last_of: dict[int, int] = {}
        carried: dict[int, list[int]] = {}
        norm = -1
        for call, size in zip(calls, sizes, strict=True):
            if call >= count and self.norm_s is not None and norm < 0:
                norm = len(release)
                release.append(0.0)
                duration.append(self.norm_s)
                moved.append(NORM_BYTES)
                after_.append(norm - 1)
            at = len(release)
            first = call < count
            cost = self.reduce_scatter if first else self.all_gather
            release.append(ready[call] if first else 0.0)
            duration.append(float(cost(size)))
            moved.append(size)
            waits = -1 if first else max(last_of[before] for before in needs[call])
            after_.append(waits if norm < 0 or first else norm)
            if first:
                last_of[call] = at
            else:
                carried.setdefault(call - count, []).append(at)
        of_gradient = [np.zeros(0, dtype=np.int64)] * self.num_gradients
        for number, group in enumerate(plan.gathered.members):
            for gradient in group:
                of_gradient[gradient] = np.array(carried[number], dtype=np.int64)
        return Traffic(
            release_s=np.array(release),
            duration_s=np.array(duration),
            size_bytes=np.array(moved, dtype=np.int64),
            priority=np.arange(len(release), dtype=np.float64),
            after=np.array(after_, dtype=np.int64),
            carriers=tuple(of_gradient),
        )
