"""Horovod's coordinator: cycles, a fusion buffer with look-ahead, and a barrier at the end.

Follows Horovod 0.28.1, ``operations.cc`` (RunLoopOnce) and ``controller.cc`` (FuseResponses).
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from pace.documents.profile import Profile
from pace.planning.fusion.problem import FusionProblem
from pace.simulation.grouped import carriers
from pace.simulation.knobs import Bytes, Seconds, knobs
from pace.simulation.traffic import Rules, Traffic
from pace.solver.arrays import FloatArray
from pace.solver.compute_clock import ComputeClock


@knobs
class Horovod:
    """Horovod with its defaults, a fusion buffer of 128 MiB and cycles of 1 ms.

    Attributes
    ----------
    fusion_bytes
        HOROVOD_FUSION_THRESHOLD, in bytes.
    cycle_s
        HOROVOD_CYCLE_TIME, in seconds.
    negotiation_s
        Time from the end of a cycle until its all-reduces may start, in seconds.
    blocking
        Whether a cycle waits for its all-reduces, as with operations on the CPU. Otherwise it gives them to a
        stream.
    barrier
        Whether the forward pass waits for all gradients, as ``step()`` does.
    """

    fusion_bytes: Bytes = 128 << 20
    cycle_s: Seconds = 1e-3
    negotiation_s: Seconds = 0.0
    blocking: bool = False
    barrier: bool = True

    def prepare(self, profile: Profile) -> "HorovodSender":
        """Keep the policy and the gradients; Horovod chooses groups during the window."""
        return HorovodSender(
            policy=self, problem=FusionProblem.of(profile), rules=Rules(barrier=self.barrier)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HorovodSender:
    """Fuses the gradients that are ready at each cycle."""

    policy: Horovod
    problem: FusionProblem
    rules: Rules

    def traffic(self, ready_s: FloatArray) -> Traffic:
        """Run the coordinator's loop over the window; its cycles are in wall time."""
        problem, policy = self.problem, self.policy
        clock = ComputeClock(problem.slowdown)
        order = [int(g) for g in np.argsort(ready_s, kind="stable") if problem.sizes[g]]
        sizes, dtypes = problem.sizes.tolist(), problem.dtypes.tolist()
        queue: deque[int] = deque()
        groups: list[tuple[int, ...]] = []
        release: list[float] = []
        cycle = free = 0.0
        at = 0
        while at < len(order) or queue:
            if not queue:
                # Skip cycles in which nothing is ready.
                ready = float(clock.wall_s(ready_s[order[at]]))
                idle = max(ready - cycle, 0.0)
                missed = np.ceil(idle / policy.cycle_s) if policy.cycle_s > 0 else 0.0
                cycle = max(cycle + missed * policy.cycle_s, ready)
                # The next gradient is ready at this cycle, even if rounding says otherwise.
                queue.append(order[at])
                at += 1
            now = float(clock.compute_s(cycle))
            while at < len(order) and ready_s[order[at]] <= now:
                queue.append(order[at])
                at += 1
            released = float(clock.compute_s(cycle + policy.negotiation_s))
            for group in fuse_responses(queue, sizes, dtypes, policy.fusion_bytes):
                groups.append(group)
                release.append(released)
                start = max(free, released)
                size_bytes = problem.sizes[list(group)].sum()
                free = start + float(problem.cost(size_bytes))
                if problem.extra is not None and start < problem.backward_s:
                    free += float(problem.extra(size_bytes))
                if problem.slowdown != 1:
                    clock.carry(start, free)
            cycle = max(cycle + policy.cycle_s, float(clock.wall_s(free)) if policy.blocking else 0.0)
        fused = np.array([problem.sizes[list(group)].sum() for group in groups], dtype=np.int64)
        return Traffic(
            release_s=np.array(release),
            duration_s=problem.cost(fused),
            size_bytes=fused,
            priority=np.arange(len(groups), dtype=np.float64),
            after=np.full(len(groups), -1, dtype=np.int64),
            carriers=carriers(groups, np.arange(len(groups)), len(ready_s)),
        )


def fuse_responses(
    queue: "deque[int]", sizes: list[int], dtypes: list[int], fusion_bytes: int
) -> list[tuple[int, ...]]:
    """Empty `queue` into fused groups as FuseResponses does.

    Take the head, and append the next ones while dtypes match and the sum is within the threshold. Skip
    others as long as fused and skipped bytes together are within the threshold. Skipped ones go back to the
    queue, in order.
    """
    groups = []
    while queue:
        head = queue.popleft()
        group, fused = [head], sizes[head]
        skipped: list[int] = []
        skipped_bytes = 0
        while queue:
            following = queue[0]
            if dtypes[following] == dtypes[head] and fused + sizes[following] <= fusion_bytes:
                group.append(queue.popleft())
                fused += sizes[following]
                continue
            skipped_bytes += sizes[following]
            if fused + skipped_bytes > fusion_bytes:
                break
            skipped.append(queue.popleft())
        queue.extendleft(reversed(skipped))
        groups.append(tuple(group))
    return groups
