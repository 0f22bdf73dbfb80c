"""A graph as it would be if other numbers of ranks shared its parameters.

Whole parameters, gradients and all compute on them stay as they are: each rank keeps its batch. What is
sharded becomes smaller or larger: the inputs of all-gathers of parameters, the outputs of reduce-scatters of
gradients, ops that only read or make such shards, collectives of these over other process groups, and
resident shards.

Costs change like those of a ring, in which n ranks send n - 1 messages of 1/n of the whole. With m ranks and
messages of the same size, a collective takes (m - 1)/(n - 1) as long. So the latency changes by
(m - 1)/(n - 1), and the time of a whole of V bytes by ((m - 1)/m)/((n - 1)/n).
"""

from pace.documents.collective_costs import AffineAllReduce, SampledAllReduce
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.nodes import CollectiveCall, Communicator, GraphNode, OpCost
from pace.documents.profile import ELEMENT_BYTES
from pace.errors import InvalidOptions
from pace.planning.graph.arrays import program_of
from pace.solver.graph.list_schedule import UNLIMITED, ListScheduler

MOST_RANKS = 10**6
# An op's output may have another dtype than its input. An even smaller one is a norm or a flag, not a shard.
_WIDEST = max(ELEMENT_BYTES.values())
_SMALL_BYTES = 1 << 16


def with_ranks(graph: CollectiveGraph, ranks: int) -> CollectiveGraph:
    """Return a graph whose parameters are sharded over `ranks` ranks.

    Raises
    ------
    InvalidOptions
        If the graph does not say over which process group parameters are sharded, if that has one rank, or
        if sizes are not divisible by the number of ranks. The message names what is at fault.
    """
    if not 2 <= ranks <= MOST_RANKS:
        raise InvalidOptions(f"ranks {ranks}: expected 2 to {MOST_RANKS:,}")
    return _Resharding(graph, ranks).resharded()


class _Resharding:
    """Changes one graph from `before` ranks to `after`."""

    def __init__(self, graph: CollectiveGraph, ranks: int) -> None:
        self.graph = graph
        self.after = ranks
        self.served, gathers = _parameters(graph)
        self.group_of = {each.name: each.process_group for each in graph.communicators}
        self.group = self._sharding_group(gathers)
        self.gathers = gathers
        sizes = {each.ranks for each in graph.communicators if each.process_group == self.group}
        if len(sizes) > 1:
            raise self._refusal(f'communicators of group "{self.group}" have different numbers of ranks')
        (self.before,) = sizes
        if self.before == 1:
            raise self._refusal(f'group "{self.group}" has 1 rank, so its costs say nothing about more ranks')
        # Bytes of each shard that was computed from reduced gradients; 0 for small values, such as norms.
        self.shard_bytes: dict[str, int] = {}

    def resharded(self) -> CollectiveGraph:
        if self.after == self.before:
            return self.graph
        nodes = tuple(self._node(node) for node in self.graph.nodes)
        shards = self.graph.resident_shard_bytes
        # Rounded up: inputs of several parameters are counted together.
        shards_after = -(-shards * self.before // self.after)
        return self.graph.model_copy(
            update={
                "nodes": nodes,
                "communicators": tuple(self._communicator(each) for each in self.graph.communicators),
                "resident_bytes": self.graph.resident_bytes - shards + shards_after,
                "resident_shard_bytes": shards_after,
            }
        )

    def _sharding_group(self, gathers: frozenset[str]) -> str:
        """Return the process group over which parameters are sharded."""
        calls = {node.name: node.collective for node in self.graph.nodes if node.collective is not None}
        groups = {self.group_of[calls[name].communicator] for name in gathers}
        if not groups:  # the backward pass of parameters that stay gathered
            groups = {
                self.group_of[call.communicator] for call in calls.values() if call.op == "reduce-scatter"
            }
        if not groups:
            raise self._refusal("it gathers no parameters and reduce-scatters no gradients")
        if len(groups) > 1:
            names = " and ".join(f'"{name}"' for name in sorted(groups))
            raise self._refusal(f"its parameters are sharded over several process groups, {names}")
        return groups.pop()

    def _node(self, node: GraphNode) -> GraphNode:
        call = node.collective
        below = self._below(node)
        if call is not None:
            if self.group_of[call.communicator] == self.group:
                return self._sharding_call(node, call, below)
            if below:
                return self._call_of_shards(node, call, below)
            return node
        if node.waits_for is not None:
            if node.waits_for in self.shard_bytes:
                self.shard_bytes[node.name] = self.shard_bytes[node.waits_for]
            return node
        if node.name in self.served:
            return self._op(node, node.allocates_bytes)
        if not below:
            return node
        largest = max(self.shard_bytes[dep] for dep in below)
        if node.view_of is not None:
            self.shard_bytes[node.name] = self.shard_bytes.get(node.view_of, largest)
            return node
        self.shard_bytes[node.name] = self._shard(node.name, node.allocates_bytes, largest)
        return self._op(node, node.allocates_bytes) if largest else node

    def _below(self, node: GraphNode) -> tuple[str, ...]:
        """Return what a node reads of reduced shards: all that it reads, or nothing."""
        shards = tuple(dep for dep in node.deps if dep in self.shard_bytes)
        if shards and len(shards) < len(node.deps) and any(self.shard_bytes[dep] for dep in shards):
            other = next(dep for dep in node.deps if dep not in self.shard_bytes)
            raise self._refusal(
                f'node "{node.name}" reads the shard "{shards[0]}" and also "{other}", so it is not clear '
                "what changes with the number of ranks"
            )
        return shards if len(shards) == len(node.deps) else ()

    def _shard(self, name: str, size: int, largest: int) -> int:
        """Return the size of what is computed from shards of up to `largest` bytes; 0 if it is no shard."""
        if largest and size * _WIDEST >= largest:
            return size
        if size > _SMALL_BYTES:
            raise self._refusal(
                f'the {size:,} bytes of "{name}" are much less than the shard that it reads, so it is not '
                "clear whether they change with the number of ranks"
            )
        return 0

    def _op(self, node: GraphNode, size: int) -> GraphNode:
        """Return an op on shards: it takes time in proportion to them."""
        update: dict[str, object] = {"duration_s": node.duration_s * self.before / self.after}
        if size and (node.name in self.served or self.shard_bytes[node.name]):
            update["allocates_bytes"] = self._share(size, node.name)
        return node.model_copy(update=update)

    def _sharding_call(self, node: GraphNode, call: CollectiveCall, below: tuple[str, ...]) -> GraphNode:
        """Return a collective of the process group over which parameters are sharded."""
        if call.op == "all-reduce":
            if below:
                largest = max(self.shard_bytes[dep] for dep in below)
                if self._shard(node.name, call.input_bytes, largest):
                    raise self._refusal(f'all-reduce "{node.name}" adds shards over their own group')
                self.shard_bytes[node.name] = 0
            return node
        if call.op == "all-to-all":
            raise self._refusal(f'"{node.name}" is an all-to-all over group "{self.group}"')
        gathers = call.op == "all-gather"
        shard, whole = call.input_bytes, call.output_bytes
        if not gathers:
            shard, whole = whole, shard
        if shard * self.before != whole:
            raise self._refusal(
                f'{call.op} "{node.name}" has {call.input_bytes:,} bytes in and {call.output_bytes:,} out, '
                f"which does not fit {self.before} ranks"
            )
        if gathers and node.name not in self.gathers and not below:
            raise self._refusal(f'all-gather "{node.name}" does not gather parameters only')
        element = 1 if call.dtype is None else ELEMENT_BYTES[call.dtype]
        after = self._share(shard, node.name, element)
        if not gathers:
            self.shard_bytes[node.name] = shard
        return _resized(node, call, {"input_bytes" if gathers else "output_bytes": after})

    def _call_of_shards(self, node: GraphNode, call: CollectiveCall, below: tuple[str, ...]) -> GraphNode:
        """Return a collective of another process group, such as HSDP's all-reduce over replicas."""
        largest = max(self.shard_bytes[dep] for dep in below)
        if not self._shard(node.name, call.input_bytes, largest):
            self.shard_bytes[node.name] = 0
            return node
        self.shard_bytes[node.name] = call.output_bytes
        element = 1 if call.dtype is None else ELEMENT_BYTES[call.dtype]
        return _resized(
            node,
            call,
            {
                "input_bytes": self._share(call.input_bytes, node.name, element),
                "output_bytes": self._share(call.output_bytes, node.name, element),
            },
        )

    def _share(self, size: int, name: str, element: int = 1) -> int:
        """Return a shard's bytes after the change."""
        after, rest = divmod(size * self.before, self.after)
        if rest or after % element:
            raise self._refusal(
                f'the {size * self.before:,} bytes of "{name}" do not divide into {self.after} shards'
            )
        return after

    def _communicator(self, communicator: Communicator) -> Communicator:
        if communicator.process_group != self.group:
            return communicator
        costs = tuple(_cost(each, self.before, self.after) for each in communicator.costs)
        return communicator.model_copy(update={"ranks": self.after, "costs": costs})

    def _refusal(self, why: str) -> InvalidOptions:
        return InvalidOptions(f'graph "{self.graph.name}" cannot be predicted for {self.after} ranks: {why}')


def _parameters(graph: CollectiveGraph) -> tuple[frozenset[str], frozenset[str]]:
    """Return the ops that serve only all-gathers of parameters, such as casts, and these all-gathers."""
    scheduler = ListScheduler(program_of(graph), UNLIMITED)
    served = frozenset(
        node.name for node, gather in zip(graph.nodes, scheduler.served.tolist(), strict=True) if gather >= 0
    )
    return served, frozenset(graph.nodes[number].name for number in scheduler.gathers)


def _resized(node: GraphNode, call: CollectiveCall, sizes: dict[str, int]) -> GraphNode:
    return node.model_copy(update={"collective": call.model_copy(update=sizes)})


def _cost(cost: OpCost, before: int, after: int) -> OpCost:
    """Return what an op costs among `after` ranks, by its input: a shard for all-gathers, else a whole."""
    messages = (after - 1) / (before - 1)
    larger = 1.0 if cost.op == "all-gather" else after / before
    if isinstance(cost.cost, AffineAllReduce):
        line = AffineAllReduce(
            latency_s=cost.cost.latency_s * messages,
            seconds_per_byte=cost.cost.seconds_per_byte * messages / larger,
        )
        return cost.model_copy(update={"cost": line})
    curve = cost.curve(before)
    # One knot at each end besides the curve's own, so that neither end is assumed anew from fewer samples.
    last = max(curve.sizes_bytes[-1], 1 / larger)
    knots = {1.0: 1 / larger} | {size * larger: size for size in (*curve.sizes_bytes, 4 * last)}
    samples = ((size, float(curve(was)) * messages) for size, was in knots.items() if size >= 1)
    return cost.model_copy(update={"cost": SampledAllReduce(samples=tuple(samples))})
