"""Graphs of sharded training for tests: a few layers by hand, and random programs."""

import random

from hypothesis import strategies as st

from pace.documents.collective_costs import AffineAllReduce, SampledAllReduce
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.nodes import CollectiveCall, CollectiveOp, Communicator, GraphNode, OpCost

OPS: tuple[CollectiveOp, ...] = ("all-gather", "reduce-scatter", "all-reduce")
SHARD, FULL = 64, 256


def collective(name: str, op: CollectiveOp, deps: tuple[str, ...] = (), *, group: str = "dp") -> GraphNode:
    """Return a collective of a shard and its whole."""
    sent, got = {"all-gather": (SHARD, FULL), "reduce-scatter": (FULL, SHARD)}.get(op, (SHARD, SHARD))
    return GraphNode(
        name=name,
        deps=deps,
        collective=CollectiveCall(
            op=op, communicator=group, dtype="float32", input_bytes=sent, output_bytes=got
        ),
    )


def wait(name: str, *, returned: bool = False) -> GraphNode:
    """Return the wait of a collective."""
    return GraphNode(name=f"wait {name}", deps=(name,), waits_for=name, returned=returned)


def graph_of(
    nodes: list[GraphNode],
    *,
    latency_s: float = 0.5,
    seconds_per_byte: float = 1 / 512,
    wires: tuple[str, ...] = ("wire",),
    copy_bytes_per_s: float = 1e6,
    compute_slowdown: float = 1.0,
) -> CollectiveGraph:
    """Return a graph whose collectives cost a line, with a communicator for each wire: "dp", then "tp"."""
    cost = AffineAllReduce(latency_s=latency_s, seconds_per_byte=seconds_per_byte)
    costs = tuple(OpCost(op=op, cost=cost) for op in OPS)
    groups = tuple(
        Communicator(name=name, ranks=4, wire=wires[min(number, len(wires) - 1)], costs=costs)
        for number, name in enumerate(("dp", "tp"))
    )
    return CollectiveGraph(
        name="test",
        wires=wires,
        communicators=groups,
        copy_bytes_per_s=copy_bytes_per_s,
        compute_slowdown=compute_slowdown,
        nodes=tuple(nodes),
    )


def forward(num_layers: int, *, compute_s: float = 2.0) -> list[GraphNode]:
    """Return layers that each gather their parameters right before they compute."""
    nodes: list[GraphNode] = []
    before: tuple[str, ...] = ()
    for layer in range(num_layers):
        nodes += [
            collective(f"gather {layer}", "all-gather"),
            wait(f"gather {layer}"),
            GraphNode(
                name=f"layer {layer}",
                duration_s=compute_s,
                deps=(f"wait gather {layer}", *before),
                allocates_bytes=16,
                returned=layer == num_layers - 1,
            ),
        ]
        before = (f"layer {layer}",)
    return nodes


def backward(num_layers: int) -> list[GraphNode]:
    """Return layers that gather, compute, and reduce their gradients, waiting for each at once."""
    nodes: list[GraphNode] = []
    before: tuple[str, ...] = ()
    for layer in range(num_layers):
        nodes += [
            collective(f"gather {layer}", "all-gather"),
            wait(f"gather {layer}"),
            GraphNode(
                name=f"inputs {layer}",
                duration_s=1.0,
                deps=(f"wait gather {layer}", *before),
                allocates_bytes=32,
            ),
            GraphNode(
                name=f"weights {layer}", duration_s=1.0, deps=(f"inputs {layer}",), allocates_bytes=FULL
            ),
            collective(f"scatter {layer}", "reduce-scatter", (f"weights {layer}",)),
            wait(f"scatter {layer}", returned=True),
        ]
        before = (f"inputs {layer}",)
    return nodes


def held_up() -> CollectiveGraph:
    """Return eight backward layers that compute for 2 s and gather for 0.125 s.

    The first reduce-scatter takes 12 s, the last one 0.5 s. Other layers are frozen: they reduce nothing.
    """
    nodes = [node for node in backward(8) if "scatter" not in node.name or node.name[-1] in "07"]
    at = next(number for number, node in enumerate(nodes) if node.name == "scatter 0")
    call = nodes[at].collective
    assert call is not None
    longest = call.model_copy(update={"input_bytes": 24 * FULL})
    nodes[at] = nodes[at].model_copy(update={"collective": longest})
    return graph_of(nodes, latency_s=0.0)


def tiny_graph(seed: int, *, most_nodes: int = 9, most_collectives: int = 4) -> CollectiveGraph:
    """Return a random graph of a few collectives on one or two wires, in some without an op between.

    Costs, sizes, durations and what is returned are of few values, so that many plans are equally good.
    Waits are not counted in `most_nodes`.
    """
    pick = random.Random(seed)
    wires = ("wire", "second")[: pick.choice((1, 1, 2))]

    def cost() -> AffineAllReduce | SampledAllReduce:
        if pick.random() < 0.5:
            return AffineAllReduce(
                latency_s=pick.choice((0.0, 0.5, 1.0)), seconds_per_byte=pick.choice((0.0, 0.001, 0.01, 0.02))
            )
        sizes = sorted(pick.sample((1, 10, 50, 100, 200, 1000), pick.randint(2, 4)))
        seconds = 0.0
        return SampledAllReduce(
            samples=tuple((size, seconds := seconds + pick.choice((0.05, 0.1, 0.5, 1.0))) for size in sizes)
        )

    groups = tuple(
        Communicator(
            name=name, ranks=2, wire=pick.choice(wires), costs=tuple(OpCost(op=op, cost=cost()) for op in OPS)
        )
        for name in ("dp", "tp")[: pick.randint(1, 2)]
    )
    num_collectives = pick.randint(1, most_collectives)
    num_ops = pick.randint(1, most_nodes - num_collectives - 1) if pick.random() < 0.85 else 1
    kinds = ["collective"] * num_collectives + ["op"] * num_ops
    pick.shuffle(kinds)
    nodes: list[GraphNode] = []
    readable: list[str] = []
    waiting: list[str] = []
    for number, kind in enumerate(kinds):
        name = f"node {number}"
        deps = tuple(sorted(pick.sample(readable, min(len(readable), pick.choice((0, 1, 1, 2))))))
        if kind == "collective":
            call = CollectiveCall(
                op=pick.choice(OPS),
                communicator=pick.choice(groups).name,
                dtype=pick.choice(("float32", "float32", "bfloat16")),
                input_bytes=pick.choice((10, 50, 100, 200)),
                output_bytes=pick.choice((10, 50, 100, 200, 400)),
            )
            nodes.append(GraphNode(name=name, deps=deps, collective=call))
            waiting.append(name)
        else:
            view = bool(deps) and pick.random() < 0.15
            nodes.append(
                GraphNode(
                    name=name,
                    duration_s=0.0 if view else pick.choice((0.0, 0.3, 1.0, 2.0, 3.0)),
                    deps=deps,
                    allocates_bytes=0 if view else pick.choice((0, 10, 50, 100)),
                    view_of=deps[0] if view else None,
                    returned=pick.random() < 0.3,
                )
            )
            readable.append(name)
        while waiting and (pick.random() < 0.6 or number == len(kinds) - 1):
            nodes.append(wait(waiting.pop(0), returned=pick.random() < 0.3))
            readable.append(nodes[-1].name)
    return CollectiveGraph(
        name=f"tiny {seed}",
        wires=wires,
        communicators=groups,
        copy_bytes_per_s=pick.choice((100.0, 1000.0, 1e6)),
        resident_bytes=pick.choice((0, 0, 100)),
        compute_slowdown=pick.choice((1.0, 1.0, 1.25, 3.0)),
        nodes=tuple(nodes),
    )


@st.composite
def graphs(draw: st.DrawFn, *, most_nodes: int = 12, samples: bool = False) -> CollectiveGraph:
    """Return random programs: collectives read any op or wait before; some nodes are views or returned."""
    nodes: list[GraphNode] = []
    readable: list[str] = []
    waiting: list[str] = []
    seconds = st.integers(0, 8).map(lambda eighths: eighths / 8)
    for number in range(draw(st.integers(1, most_nodes))):
        kind = draw(st.sampled_from(("op", "op", "view", "collective", "wait")))
        deps = tuple(draw(st.lists(st.sampled_from(readable), unique=True, max_size=3))) if readable else ()
        returned = draw(st.integers(0, 5)) == 0
        name = f"node {number}"
        if kind == "wait" and waiting:
            waited = waiting.pop(draw(st.integers(0, len(waiting) - 1)))
            nodes.append(GraphNode(name=name, deps=(waited,), waits_for=waited, returned=returned))
            readable.append(name)
        elif kind == "collective":
            call = CollectiveCall(
                op=draw(st.sampled_from(OPS)),
                communicator=draw(st.sampled_from(("dp", "tp"))),
                dtype=draw(st.sampled_from(("float32", "bfloat16"))),
                input_bytes=draw(st.integers(1, 8)) * 16,
                output_bytes=draw(st.integers(1, 8)) * 16,
            )
            nodes.append(GraphNode(name=name, deps=deps, collective=call))
            waiting.append(name)
        else:
            view = kind == "view" and bool(deps)
            nodes.append(
                GraphNode(
                    name=name,
                    duration_s=draw(seconds),
                    deps=deps,
                    view_of=deps[0] if view else None,
                    allocates_bytes=0 if view else draw(st.integers(0, 4)) * 32,
                    returned=returned,
                )
            )
            readable.append(name)
    nodes += [GraphNode(name=f"wait for {name}", deps=(name,), waits_for=name) for name in waiting]
    wires = draw(st.sampled_from((("wire",), ("wire", "second"))))
    graph = graph_of(
        nodes,
        latency_s=draw(seconds),
        wires=wires,
        copy_bytes_per_s=draw(st.sampled_from((64.0, 1e6))),
        compute_slowdown=draw(st.sampled_from((1.0, 1.5))),
    )
    if not samples:
        return graph
    steps = draw(st.lists(st.integers(0, 8), min_size=3, max_size=3))
    points = tuple((float(16 << (2 * at)), sum(steps[: at + 1]) / 8) for at in range(3))
    costs = tuple(OpCost(op=op, cost=SampledAllReduce(samples=points)) for op in OPS)
    return graph.model_copy(
        update={
            "communicators": tuple(each.model_copy(update={"costs": costs}) for each in graph.communicators)
        }
    )
