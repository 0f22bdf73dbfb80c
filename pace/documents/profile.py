"""The profile document: one measured training iteration.

Holds the document and the rules that make one valid. The arrays that algorithms work on are made
here too, once per profile: the augmented graph and the timing of every gradient.
"""

import hashlib
import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from pace.collectives import FREE
from pace.documents.base import Document, FrozenDict, frozen, load, parse, repeated
from pace.documents.collective_costs import AllReduce, HalfCost
from pace.documents.load import Load
from pace.documents.op_graph import CyclicGraph, Graph, Timing, build_graph, path_from_marked
from pace.documents.profile_json import compact_profile, dump_profile
from pace.documents.push_pull import TouchedRows
from pace.errors import InvalidProfile
from pace.solver.cost_curve import CostCurve

Name = Annotated[str, Field(min_length=1, max_length=1000)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

UpdateRule = Literal["per-gradient", "global-norm"]

# Beyond these a double no longer counts every byte, and sums of times leave its range.
MAX_TOTAL_BYTES = 2**53
MAX_TOTAL_S = 1e12
MAX_SLOWDOWN = 1000
MOST_WORKERS = 1_000_000

DType = Literal[
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"
]

ELEMENT_BYTES: dict[DType, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}

# Servers get these whole: sums of rows are not held in float32.
HALVES: tuple[DType, ...] = ("float16", "bfloat16")


class Op(Document):
    """A unit of compute, or of communication that no schedule moves.

    Attributes
    ----------
    kind
        "communication" is an all-to-all, all-gather or reduce-scatter. It runs on a stream of its own and
        does not use the network of the all-reduces. A faster device does not shorten it.
    duration_s
        Mean duration in seconds.
    duration_std_s
        Standard deviation of the duration over the measured iterations, in seconds.
    deps
        Names of the ops that must end before it starts.
    stream
        Name of its stream. Ops of one stream run one after another, in the order of the list.
    waits_for
        Names of the gradients whose all-reduce must end before it starts.
    """

    refused_as = InvalidProfile

    name: Name
    kind: Literal["compute", "communication"] = "compute"
    duration_s: Seconds
    duration_std_s: Seconds = 0.0
    deps: tuple[Name, ...] = ()
    stream: Name | None = None
    waits_for: tuple[Name, ...] = ()


class Gradient(Document):
    """A tensor to be all-reduced: its size in bytes, dtype, and the op that produces it.

    Attributes
    ----------
    touched
        For an embedding table with sparse gradients, the rows that steps touch. Over servers, only these are
        sent. All-reduces send the whole gradient.
    """

    refused_as = InvalidProfile

    name: Name
    size_bytes: Annotated[int, Field(ge=0, lt=2**63)]
    dtype: DType = "float32"
    producer: Name
    # Left out where it says nothing: older readers take newer documents.
    touched: TouchedRows | None = Field(default=None, exclude_if=lambda touched: touched is None)

    @model_validator(mode="after")
    def _whole_elements(self) -> Self:
        element = ELEMENT_BYTES[self.dtype]
        if self.size_bytes % element:
            raise ValueError(f"{self.size_bytes} bytes are no multiple of {self.dtype}'s {element} bytes")
        if self.touched is not None and self.size_bytes % self.touched.rows:
            raise ValueError(f"{self.size_bytes} bytes are not {self.touched.rows} rows of equal size")
        return self


class Profile(Document):
    """One training iteration: compute ops, gradients, and what an all-reduce costs.

    Attributes
    ----------
    compute_slowdown
        Factor by which ops take longer while the network is busy; 1 for no slowdown. The network is not
        slowed. See ``pace.solver.compute_clock``.
    update
        What an update waits for: "per-gradient" (the sum of its own gradient) or "global-norm" (the sums of
        all gradients, as with clipping by the global norm, or a loss scale that checks every gradient).
    load
        How much longer all-reduces take while compute runs, and how far ranks are apart; None if it is not
        known. Halves of an all-reduce count as if each took as much longer.
    reduce_scatter, all_gather
        Cost of each half of an all-reduce, if it was measured; see ``pace.documents.collective_costs``.

    Raises
    ------
    pydantic.ValidationError
        From the constructor, naming the offending op or gradient. ``parse_profile`` and
        ``load_profile`` raise ``InvalidProfile`` instead.
    """

    refused_as = InvalidProfile

    schema_version: Literal[1] = 1
    name: Name
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)]
    ops: tuple[Op, ...]
    gradients: tuple[Gradient, ...]
    allreduce: AllReduce
    reduce_scatter: HalfCost | None = None
    all_gather: HalfCost | None = None
    compute_slowdown: Annotated[float, Field(ge=1, le=MAX_SLOWDOWN, allow_inf_nan=False)] = 1.0
    update: UpdateRule = "per-gradient"
    load: Annotated[Load | None, Field(exclude_if=lambda load: load is None)] = None
    metadata: Annotated[dict[str, Any], AfterValidator(frozen)] = Field(default_factory=FrozenDict)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self._numbers) < len(self.ops):
            _refuse_duplicates("op", [op.name for op in self.ops])
        _refuse_duplicates("gradient", [gradient.name for gradient in self.gradients])
        self._refuse_unknown_gradients()
        try:
            self._refuse_early_waits(self.graph)
        except KeyError:
            self._refuse_unknown_ops()
            raise
        except CyclicGraph as error:
            self._refuse_unknown_ops()
            cycle = " -> ".join(f'"{self.ops[op].name}"' for op in (*error.cycle, error.cycle[0]))
            raise ValueError(f"ops wait for one another in a cycle: {cycle}") from None
        self._refuse_what_cannot_be_added()
        for name in (self.load.sigma or ()) if self.load is not None else ():
            if name not in self._numbers:
                raise ValueError(f'load: sigma names "{name}", which is no op')
        return self

    def _refuse_unknown_gradients(self) -> None:
        gradients = {gradient.name for gradient in self.gradients}
        for number, waits_for in self._waits:
            for name in waits_for:
                if name not in gradients:
                    raise ValueError(f'op "{self.ops[number].name}" waits for "{name}", which is no gradient')

    def _refuse_unknown_ops(self) -> None:
        # Apart, as the graph finds out whether there are any: twice over every name takes time.
        ops = self._numbers
        for op in self.ops:
            for name in op.deps:
                if name not in ops:
                    raise ValueError(f'op "{op.name}" depends on "{name}", which is no op')
        for gradient in self.gradients:
            if gradient.producer not in ops:
                raise ValueError(
                    f'gradient "{gradient.name}" is produced by "{gradient.producer}", which is no op'
                )

    def _refuse_what_cannot_be_added(self) -> None:
        total_bytes = sum(gradient.size_bytes for gradient in self.gradients)
        if total_bytes > MAX_TOTAL_BYTES:
            raise ValueError(
                f"gradients have {total_bytes} bytes together, at most {MAX_TOTAL_BYTES} are allowed"
            )
        total_s = sum(self.graph.durations_s.tolist())
        if total_s > MAX_TOTAL_S:
            raise ValueError(f"ops last {total_s} s together, at most {MAX_TOTAL_S:g} s are allowed")
        # A norm of 8 bytes is exchanged even if gradients have none.
        size = max(total_bytes, 8)
        with np.errstate(all="ignore"):
            durations = {"an all-reduce": float(self.cost(size))}
            for what, half in (("a reduce-scatter", self.reduce_scatter), ("an all-gather", self.all_gather)):
                if half is not None:
                    durations[what] = float(half.cost(self.workers)(size))
        for what, seconds in durations.items():
            if not seconds <= MAX_TOTAL_S:
                raise ValueError(
                    f"{what} of {size} bytes takes {seconds} s, at most {MAX_TOTAL_S:g} s are allowed"
                )

    def _refuse_early_waits(self, graph: Graph) -> None:
        # Assumption A (the PACE paper's Lemma 1): ready times must not depend on any all-reduce.
        path = path_from_marked(graph, [number for number, _ in self._waits], self.producers)
        if path is None:
            return
        waiting = self.ops[path[0]]
        producer = self.ops[path[-1]].name
        produced = next(gradient.name for gradient in self.gradients if gradient.producer == producer)
        shown = " -> ".join(f'"{self.ops[op].name}"' for op in path)
        raise ValueError(
            f'gradient "{produced}" would be ready only after another all-reduce: op "{waiting.name}" waits '
            f'for gradient "{waiting.waits_for[0]}" and leads to its producer: {shown}'
        )

    def replace(self, **changes: Any) -> "Profile":
        """Return a copy with some fields changed, validated anew."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return Profile(**(fields | changes))

    def with_network(
        self,
        allreduce: AllReduce,
        workers: int,
        *,
        reduce_scatter: HalfCost | None = None,
        all_gather: HalfCost | None = None,
    ) -> "Profile":
        """Return a copy on another network; what follows from ops and gradients is not derived anew.

        For callers that price thousands of networks: validating the ops again, and walking their graph, would
        take longer than a simulation.

        Raises
        ------
        ValueError
            If the cost is not defined for so many workers.
        """
        cost = allreduce.cost(workers)
        changed = self.model_copy(
            update={
                "allreduce": allreduce,
                "workers": workers,
                "reduce_scatter": reduce_scatter,
                "all_gather": all_gather,
            }
        )
        for stale in ("sha256", "fingerprint", "half_costs", "clocked_cost", "clocked_half_costs"):
            changed.__dict__.pop(stale, None)
        changed.__dict__["cost"] = cost
        return changed

    def to_json(self) -> bytes:
        """Serialize for people: an op, a gradient or a sample a line; the same profile, the same bytes."""
        return dump_profile(self).encode()

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {op.name: number for number, op in enumerate(self.ops)}

    @cached_property
    def _waits(self) -> list[tuple[int, tuple[str, ...]]]:
        # The few ops that wait for gradients: most profiles have many more that do not.
        return [(number, op.waits_for) for number, op in enumerate(self.ops) if op.waits_for]

    @cached_property
    def graph(self) -> Graph:
        """The augmented graph; ops are numbered in the profile's order."""
        find = self._numbers.__getitem__
        return build_graph(
            [op.duration_s for op in self.ops],
            # Most ops depend on one other: a tuple made at once takes half as long as one of an iterator.
            [(find(op.deps[0]),) if len(op.deps) == 1 else tuple(map(find, op.deps)) for op in self.ops],
            [op.stream for op in self.ops],
        )

    @cached_property
    def producers(self) -> tuple[int, ...]:
        """For every gradient, the index of the op that produces it."""
        numbers = self._numbers
        return tuple([numbers[gradient.producer] for gradient in self.gradients])

    @cached_property
    def timing(self) -> Timing:
        """Ready times, tails and the compute bound (docs/solver.md)."""
        return self.timing_of(self.graph)

    def timing_of(self, graph: Graph) -> Timing:
        """Return the timing of this profile's ops with the durations of `graph`."""
        end = graph.end_times()
        tails = graph.tails()
        index = {gradient.name: number for number, gradient in enumerate(self.gradients)}
        tail = np.zeros(len(self.gradients))
        for number, waits_for in self._waits:
            for name in waits_for:
                tail[index[name]] = max(tail[index[name]], tails[number])
        return Timing(
            ready_s=end[list(self.producers)] if self.producers else np.zeros(0),
            tail_s=tail,
            compute_s=float(end.max(initial=0.0)),
        )

    @cached_property
    def cost(self) -> CostCurve:
        """The duration of an all-reduce as a function of its bytes."""
        return self.allreduce.cost(self.workers)

    @cached_property
    def half_costs(self) -> tuple[CostCurve, CostCurve]:
        """The durations of a reduce-scatter and of an all-gather as functions of the whole buffer's bytes.

        Raises
        ------
        ValueError
            Where gradients are exchanged over parameter servers.
        """
        first, second = self.reduce_scatter, self.all_gather
        halves = self.allreduce.halves(self.workers) if first is None or second is None else (FREE, FREE)
        return (
            halves[0] if first is None else first.cost(self.workers),
            halves[1] if second is None else second.cost(self.workers),
        )

    @cached_property
    def clocked_cost(self) -> CostCurve:
        """``cost`` on the compute clock (``pace.solver.compute_clock``)."""
        return self.cost.faster(self.compute_slowdown)

    @property
    def clocked_extra(self) -> CostCurve | None:
        """How much longer an all-reduce takes while compute runs, on the compute clock; None if not known."""
        extra = None if self.load is None or self.workers == 1 else self.load.extra
        return None if extra is None else extra.faster(self.compute_slowdown)

    @cached_property
    def clocked_half_costs(self) -> tuple[CostCurve, CostCurve]:
        """``half_costs`` on the compute clock; raises ValueError where there are none."""
        first, second = self.half_costs
        return first.faster(self.compute_slowdown), second.faster(self.compute_slowdown)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the profile's shortest JSON; 64 hexadecimal digits."""
        return hashlib.sha256(compact_profile(self).encode()).hexdigest()

    @cached_property
    def fingerprint(self) -> str:
        """What a schedule for this profile fits: the fingerprint of its gradients and workers."""
        return fingerprint(((g.name, g.size_bytes, g.dtype) for g in self.gradients), self.workers)


def fingerprint(gradients: Iterable[tuple[str, int, str]], workers: int) -> str:
    """SHA-256 over the sorted (name, size_bytes, dtype) of all gradients and the number of workers.

    The service finds a job's newest schedule by it, and the runtime refuses a schedule whose
    fingerprint is not its model's.

    Returns
    -------
    str
        64 lower-case hexadecimal digits.
    """
    document = {
        "gradients": sorted([name, size, dtype] for name, size, dtype in gradients),
        "workers": workers,
    }
    return hashlib.sha256(json.dumps(document, separators=(",", ":"), sort_keys=True).encode()).hexdigest()


def _refuse_duplicates(kind: str, names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f'two {kind}s are named "{repeated(names)}"')


def parse_profile(document: bytes | str) -> Profile:
    """Read a profile from JSON.

    Raises
    ------
    InvalidProfile
        With one line per fault, each naming the op or gradient at fault.
    """
    return parse(Profile, document)


def load_profile(path: str | Path) -> Profile:
    """Read a profile from a JSON file; raises InvalidProfile and OSError."""
    return load(parse_profile, path, InvalidProfile)
