"""The graph that the pass works on, after FSDP's collectives are bucketed in advance.

The rules of ``torch._inductor.fx_passes.fsdp.pre_bucket_fsdp_collectives``: neighbors of one process group
and dtype share a bucket of at most the size that saturates the network. Torch reads from a graph's inputs
which gathers belong to FSDP; here these are the gathers of parameters. Torch knows matrix products and
attention by their targets; here by the names that FX gives them.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.solver.graph.fused_program import fuse
from pace.solver.graph.list_schedule import UNLIMITED, ListScheduler
from pace.solver.graph.program import COLLECTIVE, OP, WAIT, Bucket, Program

MEBIBYTE = 1 << 20
NEVER = 2**62
LEAST_CAP_MB, MOST_CAP_MB = 10.0, 500.0
# comm_analysis.INTERCONNECT_PROFILES: bytes per second, latency of a hop and of the call in seconds, and the
# least size, within a node of 8 and between nodes; for a machine without a GPU and for one of H100s.
INTERCONNECTS = {
    "cpu": ((22e9, 45e-6, 10e-6, 0), (11e9, 14e-6, 30e-6, 75 * MEBIBYTE)),
    "h100": ((36e9, 40e-6, 10e-6, 0), (22e9, 12e-6, 30e-6, 100 * MEBIBYTE)),
}
_FLOPS = re.compile(
    r"(mm|addmm|bmm|baddbmm|_scaled_mm|_?convolution|convolution_backward|cudnn_convolution"
    r"|_scaled_dot_product_(efficient|flash|cudnn)_attention(_backward)?"
    r"|_(flash|efficient)_attention_(forward|backward)|flex_attention(_backward)?)(_default)?(_\d+)?"
)


@dataclass(slots=True, kw_only=True)
class PassGraph:
    """Nodes in program order, numbered in it; a bucket is one node, and so are its waits.

    Attributes
    ----------
    origins
        The nodes of the program that each node stands for.
    group
        The communicator of each collective and wait; -1 for ops.
    counts_as_compute
        Whether the pass hides collectives behind a node above all.
    size_bytes
        What a collective reads and returns, half of it for an all-reduce.
    ancestors
        For each node, the bits of all nodes that it needs.
    """

    origins: list[tuple[int, ...]]
    kind: list[int]
    seconds: list[float]
    inputs: list[list[int]]
    users: list[list[int]]
    group: list[int]
    bucket_key: list[tuple[str, int, int] | None]
    counts_as_compute: list[bool]
    is_fsdp_gather: list[bool]
    is_scatter: list[bool]
    size_bytes: list[int]
    wait_of: dict[int, int]
    start_of: dict[int, int]
    allocates: list[int]
    uses: list[list[int]]
    storage_bytes: list[int]
    kept: list[bool]
    resident_bytes: int
    ancestors: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ancestors = ancestor_bits(self.inputs)

    def __len__(self) -> int:
        return len(self.kind)

    def related(self, one: int, other: int) -> bool:
        """Return whether one node needs the other."""
        return bool(self.ancestors[one] >> other & 1 or self.ancestors[other] >> one & 1)


def ancestor_bits(inputs: Sequence[Iterable[int]], order: Sequence[int] | None = None) -> list[int]:
    """Return for each node the bits of all nodes that it needs; `order` is topological."""
    bits = [0] * len(inputs)
    for node in range(len(inputs)) if order is None else order:
        needed = 0
        for dep in inputs[node]:
            needed |= 1 << dep | bits[dep]
        bits[node] = needed
    return bits


def stable_sort(nodes: Sequence[int], deps: Sequence[Iterable[int]]) -> list[int]:
    """Return the nodes in an order that respects `deps`; one that has to wait runs right behind the last dep.

    As ``stable_topological_sort`` does. Nodes on a cycle are missing in the result.
    """
    pending = list(reversed(nodes))
    ready = [False] * len(deps)
    waiting: dict[int, list[int]] = defaultdict(list)
    done = []
    while pending:
        node = pending.pop()
        missing = [dep for dep in deps[node] if not ready[dep]]
        if missing:
            waiting[missing[-1]].append(node)
            continue
        ready[node] = True
        done.append(node)
        pending.extend(reversed(waiting.pop(node, ())))
    return done


def pass_graph(graph: CollectiveGraph, program: Program, cap_mb: float | None, device: str) -> PassGraph:
    """Return the graph after buckets in advance, of at most `cap_mb` or what saturates the network."""
    scheduler = ListScheduler(program, UNLIMITED)
    gathers = {node for node in scheduler.gathers if _call_op(graph, node) == "all-gather"}
    names = [each.name for each in graph.communicators]
    group = [
        -1 if node.collective is None else names.index(node.collective.communicator) for node in graph.nodes
    ]
    fsdp = {group[node] for node in gathers}
    buckets: list[Bucket] = []
    if fsdp:
        ranks = graph.communicators[group[min(gathers)]].ranks
        cap = int((_saturating_mb(ranks, device) if cap_mb is None else cap_mb) * MEBIBYTE)
        reduced = [node for node in program.collectives().tolist() if node not in gathers]
        scatters = [node for node in reduced if _is_fsdp_scatter(graph, program, node)]
        reductions = [
            node for node in reduced if _call_op(graph, node) == "all-reduce" and group[node] in fsdp
        ]
        for members in (sorted(gathers), scatters, reductions):
            members.sort(key=lambda node: int(program.wait_of[node]))
            buckets += _neighbors(program, members, cap)
    return _built(graph, program, buckets, group, gathers)


def _call_op(graph: CollectiveGraph, node: int) -> str | None:
    call = graph.nodes[node].collective
    return None if call is None else call.op


def _is_fsdp_scatter(graph: CollectiveGraph, program: Program, node: int) -> bool:
    """Return whether only ops of one input stand between a reduce-scatter and the program's output."""
    if _call_op(graph, node) != "reduce-scatter":
        return False
    queue = [int(program.wait_of[node])]
    if not len(program.users[queue[0]]) and not graph.nodes[queue[0]].returned:
        return False
    while queue:
        for user in program.users[queue.pop()].tolist():
            if len(program.deps[user]) != 1:
                return False
            queue.append(user)
    return True


def _saturating_mb(ranks: int, device: str) -> float:
    """Return ``compute_min_saturation_bytes`` for 90 % of the bandwidth, within the limits of the config."""
    within, between = INTERCONNECTS[device]
    rate, hop_s, call_s, least = within if ranks <= 8 else between
    size = max(9 * (call_s + (ranks - 1) * hop_s) * rate, least) if ranks > 1 else 0
    return max(LEAST_CAP_MB, min(MOST_CAP_MB, size / MEBIBYTE))


def _neighbors(program: Program, members: list[int], cap_bytes: int) -> Iterator[Bucket]:
    """Yield the buckets of ``greedy_bucket_collective_by_mb``: neighbors of one key up to a size."""
    runs: list[list[int]] = []
    for node in members:
        if not runs or program.key[runs[-1][-1]] != program.key[node]:
            runs.append([])
        runs[-1].append(node)
    for run in runs:
        bucket: list[int] = []
        below: set[int] = set()
        total = 0
        for node in run:
            if node in below:
                continue
            size = max(int(program.input_bytes[node]), int(program.output_bytes[node]))
            if bucket and total + size > cap_bytes:
                if len(bucket) > 1:
                    yield tuple(bucket)
                bucket, below, total = [], set(), 0
            bucket.append(node)
            total += size
            _add_descendants(program, node, below)
        if len(bucket) > 1:
            yield tuple(bucket)


def _add_descendants(program: Program, node: int, below: set[int]) -> None:
    stack = [node]
    while stack:
        for user in program.users[stack.pop()].tolist():
            if user not in below:
                below.add(user)
                stack.append(user)


def _built(
    graph: CollectiveGraph, program: Program, buckets: list[Bucket], group: list[int], gathers: set[int]
) -> PassGraph:
    fused = fuse(program, buckets)
    size = len(fused.kind)
    members = [tuple(fused.members[node].tolist()) for node in range(size)]
    # A bucket stands behind the last of its members, and its wait right behind it.
    place = [float(nodes[-1]) for nodes in members]
    for bucket in buckets:
        issued = int(fused.place[bucket[0]])
        place[int(fused.place[program.wait_of[bucket[0]]])] = place[issued] + 0.5
    deps = [fused.deps[node].tolist() for node in range(size)]
    order = stable_sort(sorted(range(size), key=lambda node: place[node]), deps)
    assert len(order) == size
    number = {node: at for at, node in enumerate(order)}
    origins = [members[node] for node in order]
    inputs = [[number[dep] for dep in deps[node]] for node in order]
    users: list[list[int]] = [[] for _ in order]
    for node, needed in enumerate(inputs):
        for dep in needed:
            users[dep].append(node)
    kind = [int(fused.kind[node]) for node in order]
    wait_of = {
        node: next(user for user in users[node] if kind[user] == WAIT)
        for node in range(size)
        if kind[node] == COLLECTIVE
    }
    start_of = {wait: start for start, wait in wait_of.items()}
    groups = [group[nodes[0]] for nodes in origins]
    for wait, start in start_of.items():
        groups[wait] = groups[start]
    sizes, keys, scatters = [], [], []
    for at, nodes in enumerate(origins):
        op = _call_op(graph, nodes[0])
        read = int((program.input_bytes + program.output_bytes)[list(nodes)].sum())
        sizes.append(read // 2 if op == "all-reduce" else read)
        fusible = op is not None and op != "all-to-all"
        keys.append((str(op), groups[at], int(program.key[nodes[0]])) if fusible else None)
        scatters.append(op == "reduce-scatter")
    seconds = [
        float(fused.transfer[node] if fused.kind[node] == COLLECTIVE else program.duration[members[node][0]])
        for node in order
    ]
    return PassGraph(
        origins=origins,
        kind=kind,
        seconds=seconds,
        inputs=inputs,
        users=users,
        group=groups,
        bucket_key=keys,
        counts_as_compute=_compute(graph, origins, kind, seconds),
        is_fsdp_gather=[nodes[0] in gathers for nodes in origins],
        is_scatter=scatters,
        size_bytes=sizes,
        wait_of=wait_of,
        start_of=start_of,
        allocates=[int(fused.storage_bytes[fused.fresh[node]].sum()) for node in order],
        uses=[fused.uses[node].tolist() for node in order],
        storage_bytes=fused.storage_bytes.tolist(),
        kept=fused.kept.tolist(),
        resident_bytes=program.resident_bytes,
    )


def _compute(
    graph: CollectiveGraph, origins: list[tuple[int, ...]], kind: list[int], seconds: list[float]
) -> list[bool]:
    """Return which ops are matrix products or attention; where no name says so, all that take time."""
    ops = [node for node, each in enumerate(kind) if each == OP]
    known = [node for node in ops if _FLOPS.fullmatch(graph.nodes[origins[node][0]].name)]
    chosen = set(known or (node for node in ops if seconds[node] > 0))
    return [node in chosen for node in range(len(kind))]
