"""The planner of exchange "graph": a search over complete plans, and lower bounds."""

from dataclasses import dataclass, replace

from pace.documents.graph.collective_graph import BucketKey, CollectiveGraph
from pace.documents.graph.plan import EnumeratedPlans, GraphPlan, KeyLine, LateCollective, SetOfNodes
from pace.documents.options import Options
from pace.documents.schedule import Execution, Group, Prediction, Schedule, Segment, SolverRecord
from pace.errors import InvalidOptions
from pace.planning.graph.arrays import bucket_keys, program_of
from pace.solver.arrays import FloatArray
from pace.solver.cost_curve import Line
from pace.solver.graph.bounds import MachineBound, least_stretch_s, longest_path_s, machine_bounds
from pace.solver.graph.last_collective import LastCollective, last_collective
from pace.solver.graph.list_schedule import UNLIMITED, PricedPlan
from pace.solver.graph.memory import needed_bytes
from pace.solver.graph.program import Program
from pace.solver.graph.search import search
from pace.solver.graph.timeline import Timeline, run
from pace.version import __version__

CALLS = 56
"""The number of plans that the search evaluates: about 2 s for 10,000 nodes."""


def optimize_graph(graph: CollectiveGraph, options: Options) -> Schedule:
    """Return the best plan found for a graph within the memory that the options allow.

    Raises
    ------
    InvalidOptions
        If options of other exchanges are given, or if no plan within the memory was found. The message then
        says what every plan needs, and what the leanest plan found needs, which is more if there is no proof.
    """
    options.refuse_others("graph")
    program = program_of(graph)
    return _document(graph, program, plan_of(graph, program, options.memory_bytes), options)


def plan_of(graph: CollectiveGraph, program: Program, memory_bytes: int | None) -> PricedPlan:
    """Return the best plan found within a memory budget; raises InvalidOptions if none is."""
    budget = UNLIMITED if memory_bytes is None else memory_bytes
    found = search(program, budget, CALLS)
    if found.peak_bytes > budget:
        raise InvalidOptions(_too_small(graph, program, found, budget))
    return found


def lower_bound_s(program: Program) -> float:
    """Return the time in seconds that no plan of a program beats, with any amount of memory."""
    return _Bounds.of(program, None).bound_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """What proves a bound; each field is one of ``GraphPlan``, for a program with these heads and tails."""

    program: Program
    sets: tuple[MachineBound, ...]
    late: LastCollective | None
    longest_path_s: float
    stretch_s: float

    @classmethod
    def of(cls, program: Program, memory_bytes: int | None) -> "_Bounds":
        """Return the bounds without slow-down of compute, or those with it if they are better."""
        plain = cls._without_stretch(program, memory_bytes)
        if program.compute_slowdown == 1:
            return plain
        clocked = cls._without_stretch(program.clocked, memory_bytes)
        clocked = replace(clocked, stretch_s=least_stretch_s(program, clocked.sets))
        return max(plain, clocked, key=lambda bounds: bounds.bound_s)

    @classmethod
    def _without_stretch(cls, program: Program, memory_bytes: int | None) -> "_Bounds":
        return cls(
            program=program,
            sets=machine_bounds(program),
            late=last_collective(program, memory_bytes),
            longest_path_s=longest_path_s(program),
            stretch_s=0.0,
        )

    @property
    def bound_s(self) -> float:
        """The time in seconds that no plan beats."""
        late_s = 0.0 if self.late is None else self.late.bound_s
        return max(self.longest_path_s, late_s, *(bound.bound_s for bound in self.sets)) + self.stretch_s


def _too_small(graph: CollectiveGraph, program: Program, found: PricedPlan, budget: int) -> str:
    """Say what plans need: the least if that is proven, else what was found and what no plan goes below."""
    needed = needed_bytes(program)
    least = max(int(needed.max(initial=0)), program.resident_bytes)
    node = found.peak_node
    if found.num_states is not None or least >= found.peak_bytes:
        least = found.peak_bytes
    elif least > budget:
        node = int(needed.argmax())
    where = f', at node "{graph.nodes[node].name}"' if graph.nodes else ""
    if least == found.peak_bytes:
        return (
            f"a memory budget of {budget:,} bytes is too small: every plan needs {least:,} bytes{where}; "
            "allow at least that"
        )
    if least > budget:
        return (
            f"a memory budget of {budget:,} bytes is too small: every plan needs {least:,} bytes{where}, and "
            f"the leanest plan found needs {found.peak_bytes:,} bytes; allow that"
        )
    return (
        f"no plan was found within a memory budget of {budget:,} bytes, and it is not proven that there is "
        f"none: the leanest plan found needs {found.peak_bytes:,} bytes{where}, and every plan needs at "
        f"least {least:,} bytes; allow {found.peak_bytes:,} bytes"
    )


def _document(graph: CollectiveGraph, program: Program, found: PricedPlan, options: Options) -> Schedule:
    keys = bucket_keys(graph)
    bounds = _Bounds.of(program, options.memory_bytes)
    times = run(program, found.plan)
    every = (
        None
        if found.num_states is None
        else EnumeratedPlans(num_states=found.num_states, bound_s=times.end_s)
    )
    lower = times.end_s if every is not None else bounds.bound_s
    heads_and_tails = bounds.program.heads_and_tails
    groups, transfers = _transfers(graph, program, found, times, heads_and_tails)
    return Schedule(
        exchange="graph",
        profile_sha256=graph.sha256,
        fingerprint=graph.fingerprint,
        solver=SolverRecord(version=__version__, fusion="optimal", method=found.method),
        predicted=Prediction(
            iteration_s=times.end_s,
            ideal_iteration_s=times.end_s,
            compute_s=float(program.duration.sum()),
            lower_bound_s=lower,
            gap=times.end_s / lower - 1 if lower else 0.0,
            peak_bytes=found.peak_bytes,
        ),
        execution=Execution(
            max_in_flight=1 if transfers else 0,
            max_segment_bytes=max((transfer.size_bytes for transfer in transfers), default=0),
        ),
        links=graph.wires,
        groups=groups,
        transfers=transfers,
        proofs=(),
        graph=GraphPlan(
            order=tuple(found.plan.order.tolist()),
            budget_bytes=options.memory_bytes,
            sets=tuple(_set(graph, bound, keys) for bound in bounds.sets),
            late=None if bounds.late is None else _late(graph, bounds.late, keys),
            longest_path_s=bounds.longest_path_s,
            stretch_s=bounds.stretch_s,
            enumerated=every,
        ),
    )


def _transfers(
    graph: CollectiveGraph,
    program: Program,
    found: PricedPlan,
    times: Timeline,
    heads_and_tails: tuple[FloatArray, FloatArray],
) -> tuple[tuple[Group, ...], tuple[Segment, ...]]:
    """Return each bucket or single collective as a group and its transfer, in the order of issue."""
    head, tail = heads_and_tails
    bucket_of = {member: bucket for bucket in found.plan.buckets for member in bucket}
    groups: list[Group] = []
    transfers: list[Segment] = []
    issued: set[int] = set()
    for node in found.plan.order.tolist():
        call = graph.nodes[node].collective
        if call is None or node in issued:
            continue
        bucket = bucket_of.get(node, (node,))
        issued.update(bucket)
        size = int(program.input_bytes[list(bucket)].sum())
        transfers.append(
            Segment(
                op=call.op,
                group=len(groups),
                offset_bytes=0,
                size_bytes=size,
                link=int(program.wire[node]),
                priority=len(transfers),
                start_s=float(times.start[node]),
                end_s=float(times.end[node]),
            )
        )
        groups.append(
            Group(
                tensors=tuple(graph.nodes[member].name for member in bucket),
                size_bytes=size,
                dtype=call.dtype or "uint8",
                ready_s=float(head[list(bucket)].max()),
                tail_s=float(tail[list(bucket)].max()),
                transfer_s=program.transfer_s(bucket),
            )
        )
    return tuple(groups), tuple(transfers)


def _lines(lines: dict[int, Line], keys: tuple[BucketKey, ...]) -> tuple[KeyLine, ...]:
    named = []
    for key, line in lines.items():
        op, communicator, dtype = keys[key]
        named.append(
            KeyLine(
                op=op,
                communicator=communicator,
                dtype=dtype,
                latency_s=line.latency_s,
                seconds_per_byte=line.seconds_per_byte,
            )
        )
    return tuple(named)


def _set(graph: CollectiveGraph, bound: MachineBound, keys: tuple[BucketKey, ...]) -> SetOfNodes:
    return SetOfNodes(
        wire=None if bound.wire is None else graph.wires[bound.wire],
        min_head_s=bound.min_head_s,
        total_s=bound.total_s,
        latency_s=bound.latency_s,
        min_tail_s=bound.min_tail_s,
        num_nodes=bound.num_jobs,
        lines=_lines(bound.lines, keys),
        bound_s=bound.bound_s,
    )


def _late(graph: CollectiveGraph, late: LastCollective, keys: tuple[BucketKey, ...]) -> LateCollective:
    return LateCollective(
        collective=graph.nodes[late.collective].name,
        compute_s=late.compute_s,
        latency_s=late.latency_s,
        own_s=late.own_s,
        hidden_s=late.hidden_s,
        held_s_per_byte=late.held_s_per_byte,
        full_at=graph.nodes[late.full_at].name if late.held_s_per_byte else None,
        room_bytes=late.room_bytes,
        lines=_lines(late.lines, keys),
        bound_s=late.bound_s,
    )
