"""The policies of the field, each with its authors' constants, by name."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from pace.allreduce.baselines import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES, ddp_buckets, mg_wfbp_groups
from pace.documents.base import explain
from pace.documents.profile import Profile
from pace.errors import InvalidOptions
from pace.fusion.problem import FusionProblem, Partition
from pace.simulation.grouped import GroupedSender, carriers, cut_evenly, over_groups
from pace.simulation.horovod import Horovod
from pace.simulation.knobs import Bytes, SomeBytes, knobs
from pace.simulation.scheduled import Scheduled
from pace.simulation.tictac import TransferDag, tao, tio
from pace.simulation.traffic import Policy, Rules, Traffic
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
    """Wait-free backpropagation: one all-reduce a gradient, first ready first sent (Zhang et al. 2017)."""

    barrier: bool = True

    def prepare(self, profile: Profile) -> GroupedSender:
        """Send every gradient by itself."""
        problem = FusionProblem.of(profile)
        return _whole(problem, _singles(problem), Rules(barrier=self.barrier))


@knobs
class Ddp:
    """PyTorch DDP 2.13: buckets of 1 MiB, then 25 MiB, strictly in order, a barrier before the optimizer.

    Attributes
    ----------
    first_bytes, bucket_bytes
        Limits of the first bucket and of the others; an explicit ``bucket_cap_mb`` sets both.
    """

    first_bytes: Bytes = DDP_FIRST_BUCKET_BYTES
    bucket_bytes: Bytes = DDP_BUCKET_BYTES
    barrier: bool = True

    def prepare(self, profile: Profile) -> GroupedSender:
        """Assign buckets in the order in which gradients become ready."""
        problem = FusionProblem.of(profile)
        buckets = ddp_buckets(problem, first_bytes=self.first_bytes, bucket_bytes=self.bucket_bytes)
        order = np.arange(len(buckets), dtype=np.float64)
        return _whole(problem, buckets, Rules(barrier=self.barrier, in_order=True), order)


@knobs
class MgWfbp:
    """Merged-gradient WFBP (Shi, Chu, Li, INFOCOM 2019)."""

    barrier: bool = True

    def prepare(self, profile: Profile) -> GroupedSender:
        """Merge from the gradient ready first."""
        problem = FusionProblem.of(profile)
        return _whole(problem, mg_wfbp_groups(problem), Rules(barrier=self.barrier))


@knobs
class TicTac:
    """TicTac's order on whole gradients (MLSys 2019): no fusion, no partition, no preemption."""

    order: Literal["tio", "tao"] = "tao"
    barrier: bool = False

    def prepare(self, profile: Profile) -> GroupedSender:
        """Compute the order from the forward pass's DAG."""
        problem = FusionProblem.of(profile)
        singles = _singles(problem)
        priority = {"tio": tio, "tao": tao}[self.order](TransferDag.of(profile))
        return _whole(
            problem, singles, Rules(barrier=self.barrier), priority[[group[0] for group in singles]]
        )


@knobs
class Partitioned:
    """Gradients cut evenly, layers nearest the input first, so many bytes in flight.

    ByteScheduler (Peng et al., SOSP 2019) and P3 (Jayarajan et al., MLSys 2019) differ in their knobs only.

    Attributes
    ----------
    partition_bytes, credit_bytes
        ByteScheduler's code: 1e6 and 4e6 parameters of 4 bytes.
    admission
        "code": while any credit is left; "paper": Algorithm 1, when the credit covers the whole segment.
    """

    partition_bytes: SomeBytes = 4_000_000
    credit_bytes: Bytes = 16_000_000
    admission: Literal["code", "paper"] = "code"
    barrier: bool = False

    def prepare(self, profile: Profile) -> GroupedSender:
        """Cut gradients and rank them by layer from the input."""
        problem = FusionProblem.of(profile)
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


@knobs
class Dear:
    """DeAR (Zhang et al., ICDCS 2023): reduce-scatter in backward, all-gather before the forward use.

    Attributes
    ----------
    group_bytes
        Groups are filled in forward order up to this size.
    """

    group_bytes: Bytes = 25_000_000

    def prepare(self, profile: Profile) -> "DearSender":
        """Fuse in forward order."""
        problem = FusionProblem.of(profile)
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
        return DearSender(groups=tuple(groups), problem=problem, rules=Rules())


@dataclass(frozen=True, slots=True, kw_only=True)
class DearSender:
    """Half of each all-reduce in backward, the other half behind the last first half, in forward order."""

    groups: Partition
    problem: FusionProblem
    rules: Rules

    def traffic(self, ready_s: FloatArray) -> Traffic:
        """Send reduce-scatters as groups become ready and all-gathers behind the last of them."""
        count = len(self.groups)
        ready = over_groups(np.maximum, ready_s, self.groups)
        sizes = over_groups(np.add, self.problem.sizes, self.groups)
        half = self.problem.cost(sizes) / 2
        last = int(np.argmax(ready)) if count else 0
        first_use = -over_groups(np.maximum, self.problem.tail, self.groups)
        behind = ready.max(initial=0.0) + 1
        everything = carriers(self.groups, np.arange(count), len(ready_s))
        return Traffic(
            release_s=np.concatenate([ready, np.zeros(count)]),
            duration_s=np.concatenate([half, half]),
            size_bytes=np.concatenate([sizes, sizes]),
            priority=np.concatenate([ready, behind + np.argsort(np.argsort(first_use, kind="stable"))]),
            after=np.concatenate([np.full(count, -1), np.full(count, last)]).astype(np.int64),
            carriers=tuple(transfers + count for transfers in everything),
        )


def _p3(**knobs: Any) -> Partitioned:
    # Slices of 50,000 parameters, stop and wait: the next goes out when the last has been confirmed.
    sliced: dict[str, Any] = {"partition_bytes": 200_000, "credit_bytes": 0, "admission": "paper"}
    return Partitioned(**(sliced | knobs))


def _tio(**knobs: Any) -> TicTac:
    return TicTac(order="tio", **knobs)


def _tao(**knobs: Any) -> TicTac:
    return TicTac(order="tao", **knobs)


def _pace(**knobs: Any) -> Scheduled:
    return Scheduled(fusion="pace", **knobs)


_MAKERS: dict[str, tuple[Callable[..., Policy], type, frozenset[str]]] = {
    "fifo": (Fifo, Fifo, frozenset()),
    "horovod": (Horovod, Horovod, frozenset()),
    "ddp": (Ddp, Ddp, frozenset()),
    "mg-wfbp": (MgWfbp, MgWfbp, frozenset()),
    "tio": (_tio, TicTac, frozenset({"order"})),
    "tao": (_tao, TicTac, frozenset({"order"})),
    "p3": (_p3, Partitioned, frozenset()),
    "bytescheduler": (Partitioned, Partitioned, frozenset()),
    "dear": (Dear, Dear, frozenset()),
    "pace": (_pace, Scheduled, frozenset({"fusion"})),
    "optimal": (Scheduled, Scheduled, frozenset({"fusion"})),
}

POLICIES = tuple(_MAKERS)


def knobs_of(name: str) -> tuple[str, ...]:
    """Return the names of a policy's knobs; raises InvalidOptions for an unknown policy."""
    if name not in _MAKERS:
        raise InvalidOptions(f'no policy "{name}": choose one of {", ".join(POLICIES)}')
    _, kind, fixed = _MAKERS[name]
    return tuple(field.name for field in fields(kind) if field.name not in fixed)


def make_policy(name: str, **knobs: Any) -> Policy:
    """Return a policy by name, with some of its knobs set.

    Raises
    ------
    InvalidOptions
        If the policy or a knob is unknown (the message lists the known ones) or a knob's value is wrong.
    """
    known = knobs_of(name)
    for knob in knobs:
        if knob not in known:
            raise InvalidOptions(f'policy "{name}" has no knob "{knob}": it has {", ".join(known) or "none"}')
    try:
        return _MAKERS[name][0](**knobs)
    except ValidationError as error:
        raise InvalidOptions(f'policy "{name}": {explain(error)}') from None
