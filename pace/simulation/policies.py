"""The policies of the field on one network, each with the constants of its authors."""

from typing import Literal

import numpy as np

from pace.documents.profile import Profile
from pace.planning.frameworks.grouping_rules import (
    DDP_BUCKET_BYTES,
    DDP_FIRST_BUCKET_BYTES,
    ddp_buckets,
    mg_wfbp_groups,
)
from pace.planning.fusion.problem import FusionProblem, Partition
from pace.simulation.grouped import GroupedSender, cut_evenly, over_groups
from pace.simulation.knobs import Bytes, SomeBytes, knobs
from pace.simulation.tictac import TransferDag, tao, tio
from pace.simulation.traffic import Rules
from pace.solver.arrays import FloatArray


def _singles(problem: FusionProblem) -> Partition:
    return tuple((int(gradient),) for gradient in np.flatnonzero(problem.sizes))


def _whole(
    problem: FusionProblem, groups: Partition, rules: Rules, priority: FloatArray | None = None
) -> GroupedSender:
    return GroupedSender(
        groups=groups,
        segment_groups=np.arange(len(groups), dtype=np.int64),
        segment_bytes=over_groups(np.add, problem.sizes, groups),
        cost=problem.cost,
        rules=rules,
        num_gradients=len(problem.sizes),
        priority=priority,
    )


@knobs
class Fifo:
    """Wait-free backpropagation (Zhang et al. 2017): an all-reduce per gradient, first ready, first sent."""

    barrier: bool = True

    def prepare(self, profile: Profile) -> GroupedSender:
        """Send every gradient by itself."""
        problem = FusionProblem.of(profile, barrier=False)
        return _whole(problem, _singles(problem), Rules(barrier=self.barrier))


@knobs
class Ddp:
    """PyTorch DDP 2.13: buckets of 1 MiB, then 25 MiB, strictly in order, a barrier before the optimizer.

    Attributes
    ----------
    first_bytes, bucket_bytes
        Limits of the first bucket and of the others, in bytes. DDP's ``bucket_cap_mb`` sets both.
    barrier
        Whether the forward pass waits for all gradients.
    """

    first_bytes: Bytes = DDP_FIRST_BUCKET_BYTES
    bucket_bytes: Bytes = DDP_BUCKET_BYTES
    barrier: bool = True

    def prepare(self, profile: Profile) -> GroupedSender:
        """Assign buckets in the order in which gradients become ready."""
        problem = FusionProblem.of(profile, barrier=False)
        buckets = ddp_buckets(problem, first_bytes=self.first_bytes, bucket_bytes=self.bucket_bytes)
        order = np.arange(len(buckets), dtype=np.float64)
        return _whole(problem, buckets, Rules(barrier=self.barrier, in_order=True), order)


@knobs
class MgWfbp:
    """Merged-gradient WFBP (Shi, Chu, Li, INFOCOM 2019)."""

    barrier: bool = True

    def prepare(self, profile: Profile) -> GroupedSender:
        """Merge gradients, beginning with the one that is ready first."""
        problem = FusionProblem.of(profile, barrier=False)
        return _whole(problem, mg_wfbp_groups(problem), Rules(barrier=self.barrier))


@knobs
class TicTac:
    """TicTac's order on whole gradients (MLSys 2019): no fusion, no partition, no preemption."""

    order: Literal["tio", "tao"] = "tao"
    barrier: bool = False

    def prepare(self, profile: Profile) -> GroupedSender:
        """Compute the order from the forward pass's DAG."""
        problem = FusionProblem.of(profile, barrier=False)
        singles = _singles(problem)
        priority = {"tio": tio, "tao": tao}[self.order](TransferDag.of(profile))
        return _whole(
            problem, singles, Rules(barrier=self.barrier), priority[[group[0] for group in singles]]
        )


@knobs
class Partitioned:
    """Gradients cut evenly, layers nearest the input first, with a limit on the bytes in flight.

    ByteScheduler (Peng et al., SOSP 2019) and P3 (Jayarajan et al., MLSys 2019) differ only in their knobs.

    Attributes
    ----------
    partition_bytes, credit_bytes
        Largest size of a segment, and bytes in flight. The defaults are those of ByteScheduler's code: 1e6
        and 4e6 parameters of 4 bytes.
    admission
        When a segment is handed over. "code": while any credit is left, as in ByteScheduler's code; "paper":
        when the credit covers the whole segment, as in its Algorithm 1.
    """

    partition_bytes: SomeBytes = 4_000_000
    credit_bytes: Bytes = 16_000_000
    admission: Literal["code", "paper"] = "code"
    barrier: bool = False

    def prepare(self, profile: Profile) -> GroupedSender:
        """Cut gradients and rank them by layer from the input."""
        problem = FusionProblem.of(profile, barrier=False)
        singles = _singles(problem)
        members = np.array([group[0] for group in singles], dtype=np.int64)
        groups, parts = cut_evenly(
            problem.sizes[members], problem.element_bytes[members], self.partition_bytes
        )
        layer = np.empty(len(members))
        layer[np.argsort(-problem.tail[members], kind="stable")] = np.arange(len(members))
        rules = Rules(
            credit_bytes=float(self.credit_bytes), overshoots=self.admission == "code", barrier=self.barrier
        )
        return GroupedSender(
            groups=singles,
            segment_groups=groups,
            segment_bytes=parts,
            cost=problem.cost,
            rules=rules,
            num_gradients=len(problem.sizes),
            priority=layer[groups] if len(groups) else np.zeros(0),
        )
