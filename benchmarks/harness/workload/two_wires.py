"""HSDP over two wires: the collectives within a replica beside the all-reduces between replicas.

Torch gathers a unit before its forward pass and reduce-scatters its gradients after its backward pass. On
CPUs compute waits for both. So a profile whose compute stream holds them as ops is what torch runs, and a
schedule of its all-reduces is a plan for both wires. A graph of the same window has the inner collectives on
a wire of their own and lets compute go on beside them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness.workload.replay import StagePlan, plan_replay
from benchmarks.harness.workload.replicas import by_units
from pace.documents.collective_costs import AffineAllReduce, SampledAllReduce
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.nodes import CollectiveCall, CollectiveOp, Communicator, GraphNode, OpCost
from pace.documents.profile import Op, Profile
from pace.planning.lower_bound import lower_bound_s

OUTER, INNER = "between replicas", "within a replica"

# Nothing is fused in a bound of ours, so this rate is never used; it must be positive.
_COPY_BYTES_PER_S = 1e10


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerTimes:
    """For how long compute waits for each unit's own collectives, in seconds, in forward order of units."""

    gather_s: tuple[float, ...]
    scatter_s: tuple[float, ...]

    @property
    def total_s(self) -> float:
        """Seconds of an iteration."""
        return sum(self.gather_s) + sum(self.scatter_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoWireBounds:
    """Three lower bounds of a window in seconds, each of which knows more than the one before.

    Attributes
    ----------
    outer_s
        Knows the all-reduces alone.
    beside_s
        Knows the collectives within a replica too, which may run beside compute. They are in any order.
    joint_s
        Compute waits for them, as torch does on CPUs.
    """

    outer_s: float
    beside_s: float
    joint_s: float


def bounds(profile: Profile, inner: InnerTimes, shards: int) -> TwoWireBounds:
    """Return what no schedule of all-reduces beats if inner collectives take these times.

    Whatever it fuses and cuts. `profile` holds one shard of each gradient.
    """
    outer_s = lower_bound_s(by_units(profile))
    # What holds for a window with more freedom holds for one with less.
    beside_s = max(outer_s, lower_bound_s(graph_of(profile, inner, shards)))
    joint_s = max(beside_s, lower_bound_s(with_inner(profile, inner)))
    return TwoWireBounds(outer_s=outer_s, beside_s=beside_s, joint_s=joint_s)


def as_record(found: TwoWireBounds, inner: InnerTimes) -> dict[str, Any]:
    """Return bounds and inner times as JSON holds them."""
    return asdict(found) | {"gather_s": list(inner.gather_s), "scatter_s": list(inner.scatter_s)}


def with_inner(profile: Profile, inner: InnerTimes) -> Profile:
    """Return the profile by units, with their own collectives as ops of the compute stream.

    A gradient is ready when its unit's reduce-scatter has ended, and needed when the unit is gathered.
    """
    united = by_units(profile)
    units = _units(united, inner)
    after: dict[str, list[Op]] = {}
    before: dict[str, list[Op]] = {}
    producers: dict[str, str] = {}
    stream = united.ops[0].stream
    # Backward passes run from the last unit to the first.
    for number, unit in reversed(list(enumerate(units))):
        scatter = Op(
            name=f"reduce-scatter/{number}",
            kind="communication",
            duration_s=inner.scatter_s[number],
            stream=stream,
        )
        after.setdefault(unit.producer, []).append(scatter)
        producers |= dict.fromkeys(_names(unit), scatter.name)
    for number, unit in enumerate(units):
        before.setdefault(unit.consumer, []).append(
            Op(
                name=f"all-gather/{number}",
                kind="communication",
                duration_s=inner.gather_s[number],
                stream=stream,
                waits_for=_names(unit),
            )
        )
    ops: list[Op] = []
    for op in united.ops:
        ops += before.get(op.name, ())
        ops.append(op.model_copy(update={"waits_for": ()}) if op.name in before else op)
        ops += after.get(op.name, ())
    return united.replace(
        ops=tuple(ops),
        gradients=tuple(
            gradient.model_copy(update={"producer": producers[gradient.name]})
            for gradient in united.gradients
        ),
    )


def graph_of(profile: Profile, inner: InnerTimes, shards: int) -> CollectiveGraph:
    """Return the window as a graph of both wires, in which compute may go on beside every collective."""
    united = by_units(profile)
    assert isinstance(united.allreduce, AffineAllReduce | SampledAllReduce)
    units = _units(united, inner)
    shard_bytes = [sum(gradient.size_bytes for gradient in unit.gradients) for unit in units]
    whole_bytes = [size * shards for size in shard_bytes]
    ending: dict[str, list[int]] = {}
    starting: dict[str, list[int]] = {}
    for number, unit in enumerate(units):
        ending.setdefault(unit.producer, []).insert(0, number)  # from the last unit to the first
        starting.setdefault(unit.consumer, []).append(number)
    nodes: list[GraphNode] = []

    def send(op: CollectiveOp, wire: str, number: int, read: str, sent: int, returned: int) -> str:
        name = f"{op}/{number}"
        call = CollectiveCall(
            op=op, communicator=wire, dtype="float32", input_bytes=sent, output_bytes=returned
        )
        nodes.append(GraphNode(name=name, deps=(read,), collective=call))
        nodes.append(GraphNode(name=f"{name}/wait", deps=(name,), waits_for=name))
        return f"{name}/wait"

    summed: dict[int, str] = {}
    last: tuple[str, ...] = ()
    for op in united.ops:
        reads = last
        for number in starting.get(op.name, ()):
            own, whole = shard_bytes[number], whole_bytes[number]
            reads += (send("all-gather", INNER, number, summed[number], own, whole),)
        nodes.append(GraphNode(name=op.name, duration_s=op.duration_s, deps=reads))
        last = (op.name,)
        for number in ending.get(op.name, ()):
            own, whole = shard_bytes[number], whole_bytes[number]
            scattered = send("reduce-scatter", INNER, number, op.name, whole, own)
            summed[number] = send("all-reduce", OUTER, number, scattered, own, own)
    return CollectiveGraph(
        name=profile.name,
        wires=(OUTER, INNER),
        communicators=(
            Communicator(
                name=OUTER,
                ranks=profile.workers,
                wire=OUTER,
                costs=(OpCost(op="all-reduce", cost=united.allreduce),),
            ),
            Communicator(
                name=INNER,
                ranks=shards,
                wire=INNER,
                costs=(
                    _cost("all-gather", _rising(shard_bytes, inner.gather_s)),
                    _cost("reduce-scatter", _rising(whole_bytes, inner.scatter_s)),
                ),
            ),
        ),
        copy_bytes_per_s=_COPY_BYTES_PER_S,
        nodes=tuple(nodes),
    )


def _units(united: Profile, inner: InnerTimes) -> tuple[StagePlan, ...]:
    units = plan_replay(united).stages
    assert len(units) == len(inner.gather_s) == len(inner.scatter_s)
    return units


def _names(unit: StagePlan) -> tuple[str, ...]:
    return tuple(gradient.name for gradient in unit.gradients)


def _cost(op: CollectiveOp, samples: Sequence[tuple[float, float]]) -> OpCost:
    return OpCost(op=op, cost=SampledAllReduce(samples=tuple(samples)))


def _rising(sizes: Sequence[int], seconds: Sequence[float]) -> list[tuple[float, float]]:
    """Return times that never fall with size, and are never above what was measured.

    A cost that is read off them is then at most what each unit took.
    """
    found: dict[int, float] = {}
    least = float("inf")
    for size, each in sorted(zip(sizes, seconds, strict=True), reverse=True):
        least = min(least, each)
        found[size] = least
    return [(float(size), each) for size, each in sorted(found.items())]
