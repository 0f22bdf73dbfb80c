"""What kind of job a Kineto trace recorded. Each kind has one rule, in the order in which they are tried.

=============================== ========================================================================
kind                            rule
=============================== ========================================================================
inference                       operators, and no backward pass and no optimizer
a sampled trace                 gradients are accumulated, and the ops that produced them are not there
a trace of an old torch         gradients are accumulated, and backward ops have no `evaluate_function`
pipeline parallel               sends and receives between ranks
HSDP                            FSDP's annotations or a small process group, reduce-scatters, and
                                all-reduces of at least half of the shards' bytes
FSDP1, FSDP2                    their annotations
tensor parallel                 all-reduces of at least 4 KiB in the forward pass, twice a step or more
ZeRO                            annotations of ZeroRedundancyOptimizer or DeepSpeed, or reduce-scatters
                                and all-gathers without any of the above
one process                     no collectives at all
accumulation without no_sync    several backward passes over the same gradients, each with all-reduces
all-reduces after the backward  all-reduces, the first of which comes after the last backward op
DDP of several models           several backward passes over other gradients, each with all-reduces
DDP with accumulation           several backward passes, all-reduces in the last one only
DDP with a communication hook   every all-reduce carries the same fraction of its gradients' bytes
DDP                             all-reduces under the backward pass
other collectives               whatever is left
=============================== ========================================================================

A kind is *certain* where annotations name it, *likely* where the order and the sizes of collectives say so,
and a *guess* where several kinds would record the same.
"""

import bisect
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from pace.formats.kineto_records import ACCUMULATE, BACKWARD, UPDATE, KinetoStep
from pace.formats.kineto_trace import KinetoTrace
from pace.formats.recorded_collectives import ALL_REDUCE, OF_OTHER_DATA, RecordedCall, issued_during

KindOfJob = Literal[
    "inference",
    "a sampled trace",
    "a trace of an old torch",
    "pipeline parallel",
    "HSDP",
    "FSDP1",
    "FSDP2",
    "tensor parallel",
    "ZeRO",
    "one process",
    "accumulation without no_sync",
    "all-reduces after the backward pass",
    "DDP with gradient accumulation",
    "DDP with a communication hook",
    "DDP of several models",
    "DDP",
    "other collectives",
]
Sureness = Literal["certain", "likely", "a guess"]

_REDUCE_NOTES = ("gloo:all_reduce", "nccl:all_reduce")
SMALLEST_BYTES = 4096  # less is a loss, a norm, or statistics
_FEW_OPS = 20
_SMALLER_TYPES = (1 / 2, 1 / 4, 1 / 8)  # such as float16 and int8 for float32
_MOST = 0.5
_OLD_BACKWARD = re.compile(r"^[A-Z]\w*Backward\d*$")
_DDP_NOTE = "DistributedDataParallel.forward"
_DDP_OP = "torch.distributed.ddp.reducer::"
_BETWEEN_TWO = {"send", "recv", "coalesced_send", "coalesced_recv"}
# A batch of sends and receives is one kernel, which does not say what it is.
_BETWEEN_TWO_OPS = ("c10d::send", "c10d::recv_")
_RECORD_AGAIN = "Train, then record with torch.profiler around whole steps, and pass that trace."
_SHARDED_NEXT = (
    "pace headroom and pace import plan all-reduces of gradients and do not schedule these. To see what a "
    "sharded schedule could gain, import a trace of the same model under DistributedDataParallel, and run "
    "`pace optimize PROFILE --exchange sharded`."
)
_NEXT: dict[KindOfJob, str] = {
    "inference": f"No gradients are exchanged, so there is nothing to schedule. {_RECORD_AGAIN}",
    "a sampled trace": f"Gradients and their order cannot be read from it. {_RECORD_AGAIN}",
    "a trace of an old torch": (
        "Where an op's gradients end cannot be read from it. Train and record with torch 1.11 or later."
    ),
    "pipeline parallel": (
        "Its sends and receives are not scheduled, and their order fixes when gradients are ready. Import a "
        "trace of one stage that trains alone under DistributedDataParallel."
    ),
    "FSDP1": _SHARDED_NEXT,
    "FSDP2": (
        "pace headroom and pace import plan all-reduces of gradients, and this trace has gathers of weights "
        "and reduce-scatters. They are planned from the model's graphs, not from a trace: write the graphs "
        "(guide: Train with FSDP2) and run `pace optimize FORWARD.json --other-pass BACKWARD.json --fsdp2`."
    ),
    "tensor parallel": (
        "They sum activations, which every layer waits for: no order hides them, and they do not "
        "tell what an all-reduce of gradients costs. Import a trace of the same model without tensor "
        "parallelism."
    ),
    "ZeRO": _SHARDED_NEXT,
    "accumulation without no_sync": (
        "Run all micro-batches but the last under DistributedDataParallel.no_sync(): that sends each "
        "gradient once a step. Then record again."
    ),
    "other collectives": "No gradients are all-reduced, so there is nothing to schedule.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """The kind of a job, how sure that is, and what says so."""

    name: KindOfJob
    sure: Sureness
    why: str

    @property
    def refusal(self) -> str | None:
        """Why no plan is made for this kind, and what to do next; None if one is made."""
        following = _NEXT.get(self.name)
        return None if following is None else f"{self}. {following}"

    def __str__(self) -> str:
        """Return the first line of every answer."""
        return f"{self.name} ({self.sure}: {self.why})"

    def to_metadata(self) -> dict[str, Any]:
        """Return what a profile says about the kind."""
        return {"kind": self.name, "sure": self.sure, "why": self.why}


SAMPLED = JobKind(
    name="a sampled trace",
    sure="likely",
    why="gradients are accumulated, and the backward ops that produced them are missing",
)


OLD_TORCH = JobKind(
    name="a trace of an old torch",
    sure="likely",
    why="gradients are accumulated, and backward ops are named as torch 1.8 and 1.9 named them, or left out",
)


def kind_without_steps(trace: KinetoTrace) -> JobKind | None:
    """Return the kind of a trace in which no step has both passes; None if nothing tells it."""
    names = {op.name for op in trace.ops}
    old_names = ACCUMULATE in names and any(map(_OLD_BACKWARD.search, names))
    if old_names and not any(name.startswith(BACKWARD) for name in names):
        return OLD_TORCH
    if any(op.name in (ACCUMULATE, BACKWARD + ACCUMULATE) for op in trace.ops):
        return SAMPLED
    if any(op.name.startswith(BACKWARD) for op in trace.ops):
        return None
    if any(note.name in _REDUCE_NOTES or note.name.startswith(UPDATE) for note in trace.annotations):
        return replace(SAMPLED, why="all-reduces or updates were recorded, and no backward ops")
    if (share := _share_of_graphs(trace)) > _MOST:
        why = f"{share:.0%} of the device's time is in CUDA graphs, whose operators are not recorded"
        return replace(SAMPLED, why=f"{why}: record without CUDA graphs")
    collectives = _told(Counter(op.name for op in trace.ops if op.name.startswith("c10d::")))
    why = f"{len(trace.ops)} operators, no backward pass and no optimizer"
    why += f"; {collectives}" if collectives else ""
    sure: Sureness = "likely" if len(trace.ops) >= _FEW_OPS else "a guess"
    return JobKind(name="inference", sure=sure, why=why)


def _share_of_graphs(trace: KinetoTrace) -> float:
    """Return the share of the device's time in kernels that were launched together with others."""
    together = Counter(work.correlation for work in trace.work)
    total = sum(work.duration_s for work in trace.work)
    shared = sum(
        work.duration_s
        for work in trace.work
        if work.correlation in trace.launches and together[work.correlation] > 1
    )
    return shared / total if total else 0.0


def kind_of_job(trace: KinetoTrace, steps: Sequence[KinetoStep], calls: Sequence[RecordedCall]) -> JobKind:
    """Return the kind of a trace that has at least one step, from all of its steps and collectives."""
    seen = _Seen(trace, steps, calls)
    for rule in (_sampled, _pipeline, _hybrid, _fully_sharded, _tensor, _zero, _alone, _data_parallel):
        found = rule(seen)
        if found is not None:
            return found
    return JobKind(name="other collectives", sure="a guess", why=_told(seen.names) or "none of a known kind")


class _Seen:
    """What the rules ask for, counted once. Counts are of all steps."""

    def __init__(
        self, trace: KinetoTrace, steps: Sequence[KinetoStep], calls: Sequence[RecordedCall]
    ) -> None:
        self.steps = steps
        self.notes = {note.name.split(" (")[0] for note in trace.annotations}
        self.annotated_ddp = _DDP_NOTE in self.notes or any(op.name.startswith(_DDP_OP) for op in trace.ops)
        self.accumulated = sum(op.name == BACKWARD + ACCUMULATE for op in trace.ops)
        self.accumulated_inside = sum(op.name == ACCUMULATE for op in trace.ops)
        self.groups = trace.groups
        self.workers = trace.workers
        self.calls = [
            (step, call) for step in steps for call in issued_during(calls, step.start_s, step.end_s)
        ]
        self.names = Counter(call.name for _, call in self.calls)
        self.reduces = [(step, call) for step, call in self.calls if call.name == ALL_REDUCE]
        self.collectives = [op for op in trace.ops if op.name.startswith("c10d::")]

    def bytes_of(self, name: str) -> int:
        """Return the bytes that collectives of a name moved."""
        return sum(call.size_bytes or 0 for _, call in self.calls if call.name == name)

    def forward(self, name: str) -> int:
        """Return how many collectives of a name were issued in forward passes, small ones left out."""
        return sum(
            call.name == name
            and step.part_at(call.issued_s) == "forward"
            and (call.size_bytes or 0) >= SMALLEST_BYTES
            for step, call in self.calls
        )

    def noted(self, *prefixes: str) -> str | None:
        """Return the first annotation with one of the prefixes."""
        return next((name for name in sorted(self.notes) if name.startswith(prefixes)), None)


def _told(names: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(names.items()))


def _sampled(seen: _Seen) -> JobKind | None:
    if seen.accumulated_inside == seen.accumulated:
        return None
    found, said = seen.accumulated_inside, seen.accumulated
    why = f"{said} gradients are accumulated, and {found} of the ops that do it are there"
    return JobKind(name="a sampled trace", sure="likely", why=why)


def _pipeline(seen: _Seen) -> JobKind | None:
    between = sum(seen.names[name] for name in _BETWEEN_TWO)
    between = between or sum(op.name.startswith(_BETWEEN_TWO_OPS) for op in seen.collectives)
    if not between:
        return None
    return JobKind(
        name="pipeline parallel", sure="certain", why=f"{between} sends and receives between ranks"
    )


def _fsdp_note(seen: _Seen) -> str | None:
    return seen.noted("FSDP::", "FullyShardedDataParallel")


def _hybrid(seen: _Seen) -> JobKind | None:
    scattered = seen.bytes_of("reduce_scatter")
    if not scattered or not seen.reduces or seen.forward("reduce_scatter") or seen.forward(ALL_REDUCE):
        return None
    small = [group.size for group in seen.groups if seen.workers and 1 < group.size < seen.workers]
    share = seen.bytes_of(ALL_REDUCE) / scattered
    note = _fsdp_note(seen)
    if share < 1 / (2 * max(small, default=seen.workers or 1)) or (note is None and not small):
        return None
    why = f"{len(seen.reduces) // len(seen.steps)} all-reduces a step of shards that reduce-scatters left"
    return JobKind(name="HSDP", sure="likely" if note is None else "certain", why=why)


def _fully_sharded(seen: _Seen) -> JobKind | None:
    note = _fsdp_note(seen)
    if note is None:
        return None
    why = f'the annotation "{note}"; {_told(seen.names)} in {len(seen.steps)} steps'
    return JobKind(name="FSDP2" if note.startswith("FSDP::") else "FSDP1", sure="certain", why=why)


def _tensor(seen: _Seen) -> JobKind | None:
    reduces = seen.forward(ALL_REDUCE)
    scatters = 0 if seen.annotated_ddp else seen.forward("reduce_scatter")
    if reduces + scatters < 2 * len(seen.steps):
        return None
    # Sequence parallelism sums activations with reduce-scatters; shards of gradients come in backward passes.
    what = "reduce-scatters" if scatters else "all-reduces"
    why = f"{(scatters or reduces) // len(seen.steps)} {what} a step in the forward pass"
    return JobKind(name="tensor parallel", sure="likely", why=why)


def _zero(seen: _Seen) -> JobKind | None:
    note = seen.noted("DeepSpeed", "deepspeed", UPDATE + "ZeroRedundancyOptimizer")
    if note is not None:
        return JobKind(name="ZeRO", sure="certain", why=f'the annotation "{note}"; {_told(seen.names)}')
    scatters, gathers = seen.names["reduce_scatter"], seen.names["all_gather"]
    if scatters >= len(seen.steps) and gathers >= len(seen.steps) and not seen.annotated_ddp:
        return JobKind(name="ZeRO", sure="likely", why=f"{_told(seen.names)} in {len(seen.steps)} steps")
    return None


def _alone(seen: _Seen) -> JobKind | None:
    if seen.calls or seen.collectives:
        return None
    sure: Sureness = "certain" if seen.workers == 1 else "likely"
    return JobKind(name="one process", sure=sure, why="no collectives were recorded")


def _data_parallel(seen: _Seen) -> JobKind | None:
    step = seen.steps[-1]
    reduces = [call for at, call in seen.reduces if at is step]
    if not reduces and not seen.annotated_ddp:
        return None
    if step.passes > 1 and not step.folded and _in_every_pass(step, reduces):
        why = f"{step.passes} backward passes a step over the same gradients, each with all-reduces"
        return JobKind(name="accumulation without no_sync", sure="likely", why=why)
    if (
        reduces
        and not seen.annotated_ddp
        and all(step.part_at(call.issued_s) == "update" for call in reduces)
    ):
        why = f"{len(reduces)} all-reduces a step, the first of which was issued after the last backward op"
        return JobKind(name="all-reduces after the backward pass", sure="likely", why=why)
    if seen.annotated_ddp:
        sure: Sureness = "certain"
        why = "annotations of DistributedDataParallel"
    else:
        sure, why = "likely", "all-reduces were issued during the backward pass"
    if step.models > 1:
        why = f"{step.models} backward passes a step send different gradients; {why}"
        return JobKind(name="DDP of several models", sure="likely", why=why)
    if step.folded:
        why = f"{step.folded + 1} backward passes a step, all-reduces in the last one; {why}"
        return JobKind(name="DDP with gradient accumulation", sure=sure, why=why)
    return JobKind(name="DDP", sure=sure, why=why)


def _in_every_pass(step: KinetoStep, reduces: Sequence[RecordedCall]) -> bool:
    starts = step.pass_starts_s
    return len(starts) > 1 and all(
        any(start <= call.issued_s < end for call in reduces)
        for start, end in pairwise([*starts, step.end_s])
    )


def sent_share(
    steps: Sequence[KinetoStep], calls: Sequence[RecordedCall], sizes_bytes: Sequence[int]
) -> float:
    """Return what share of its gradients' bytes every all-reduce carried; 1 if the shares differ.

    A single all-reduce may carry something else, so its share must be that of a smaller type.
    """
    shares: set[float] = set()
    num_calls = 0
    for step in steps:
        own = issued_during(calls, step.start_s, step.end_s)
        edges = list(pairwise([0, *step.reduced_after]))
        ready = [sum(sizes_bytes[first:last]) for first, last in edges]
        if len(own) != len(edges) or 0 in ready or not all(call.size_bytes for call in own):
            return 1.0
        num_calls = max(num_calls, len(own))
        shares |= {(call.size_bytes or 0) / size for call, size in zip(own, ready, strict=True)}
    share = shares.pop() if len(shares) == 1 else 1.0
    return share if share in _SMALLER_TYPES or (share < 1 and num_calls > 1) else 1.0


def set_apart(steps: Sequence[KinetoStep], calls: Sequence[RecordedCall]) -> list[RecordedCall]:
    """Return the calls; all-reduces without gradients, such as that of a loss, are renamed.

    They have a size for which no gradient became ready since the all-reduce before, in steps whose other
    all-reduces carried exactly what became ready.
    """
    others: set[int | None] = set()
    carrying: set[int | None] = set()
    own = [
        [call for call in issued_during(calls, s.start_s, s.end_s) if call.name == ALL_REDUCE] for s in steps
    ]
    for step, reduces in zip(steps, own, strict=True):
        sizes = [gradient.size_bytes or 0 for gradient in step.gradients]
        edges = [0, *(bisect.bisect_right(step.accumulated_s, call.issued_s) for call in reduces)]
        pairs = [
            (call.size_bytes, sum(sizes[first:last]))
            for call, (first, last) in zip(reduces, pairwise(edges), strict=True)
        ]
        shares = {(carried or 0) / ready for carried, ready in pairs if ready}
        if len(shares) == 1 and shares.pop() in (1.0, *_SMALLER_TYPES):
            others |= {carried for carried, ready in pairs if not ready}
            carrying |= {carried for carried, ready in pairs if ready}
    if not others or others & {*carrying, None}:
        return list(calls)
    for step, reduces in zip(steps, own, strict=True):
        if len(step.reduced_after) == len(reduces):
            step.reduced_after = [
                ready
                for ready, call in zip(step.reduced_after, reduces, strict=True)
                if call.size_bytes not in others
            ]
    renamed = {id(call) for reduces in own for call in reduces if call.size_bytes in others}
    return [replace(call, name=OF_OTHER_DATA) if id(call) in renamed else call for call in calls]


def with_hook(kind: JobKind, share: float) -> JobKind:
    """Return the kind of a job whose all-reduces carry only a share of their gradients' bytes."""
    if share == 1 or kind.name not in ("DDP", "DDP with gradient accumulation"):
        return kind
    name: KindOfJob = "DDP with a communication hook" if kind.name == "DDP" else kind.name
    return replace(
        kind, name=name, why=f"every all-reduce carries {share:.0%} of its gradients' bytes; {kind.why}"
    )
