"""The policies for graphs: how compilers, FSDP2 and DeepSpeed issue the collectives of sharded training.

Each returns a plan of the program, which is priced like any other: bucket copies on the compute stream, one
collective of a process group at a time on a wire, memory in program order.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Annotated, Literal, Protocol

import numpy as np
from pydantic import Field

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.profile import ELEMENT_BYTES
from pace.planning.graph.arrays import bucket_keys
from pace.planning.graph.optimize import plan_of
from pace.simulation.graph.inductor.bucketing import OverlapBuckets
from pace.simulation.graph.inductor.overlap import GIBIBYTE, OverlapLimits, OverlapScheduler
from pace.simulation.graph.inductor.pass_graph import pass_graph
from pace.simulation.graph.units import ShardedUnits, buckets_of, reduce_scatters, sharded_units
from pace.simulation.knobs import knobs
from pace.solver.arrays import FloatArray
from pace.solver.graph.program import COLLECTIVE, Bucket, Program, ProgramPlan
from pace.solver.graph.reorder import reordered

Count = Annotated[int, Field(ge=0, le=10**6)]
Elements = Annotated[int, Field(ge=0, le=2**53)]


class GraphPolicy(Protocol):
    """Decides about a graph's collectives."""

    def plan(self, graph: CollectiveGraph, program: Program) -> ProgramPlan:
        """Return the plan for a graph, of which `program` are the arrays."""
        ...


@knobs
class AsTraced:
    """The program's own order, without buckets."""

    def plan(self, graph: CollectiveGraph, program: Program) -> ProgramPlan:  # noqa: ARG002 - a GraphPolicy
        """Return the order as it is."""
        return ProgramPlan(order=np.arange(len(program)), buckets=())


@knobs
class Planned:
    """PACE's planner.

    Attributes
    ----------
    memory_bytes
        Memory budget; None for no limit.
    """

    memory_bytes: Annotated[int, Field(gt=0, lt=2**63)] | None = None

    def plan(self, graph: CollectiveGraph, program: Program) -> ProgramPlan:
        """Return the best plan found."""
        return plan_of(graph, program, self.memory_bytes).plan


@knobs
class Fsdp2:
    """FSDP2's defaults (``torch.distributed.fsdp._fully_shard._fsdp_param_group``, torch 2.13).

    A unit is gathered by one call, which is issued behind the wait for the unit before it: implicitly in the
    forward pass (``set_modules_to_forward_prefetch`` calls this the same overlap), by ``_backward_prefetch``
    in the backward pass. A unit's gradients are reduced by one call, for which the compute stream first waits
    until fewer than `max_input_buffers` such calls are under way (``post_backward``).

    Attributes
    ----------
    unit_collectives
        Number of parameters in each unit; 0 for the blocks found in the graph.
    ahead
        Number of units that are gathered ahead, as by ``set_modules_to_forward_prefetch`` and
        ``set_modules_to_backward_prefetch``; 0 gathers each when it is needed.
    blocks_per_unit
        Number of neighboring blocks that ``fully_shard`` is called with together.
    max_input_buffers
        ``set_reduce_scatter_max_input_buffers``.
    separate_reduce_scatter_group
        ``set_separate_reduce_scatter_group``: reduce-scatters and all-gathers share the wire.
    """

    unit_collectives: Count = 0
    blocks_per_unit: Annotated[int, Field(ge=1, le=10**6)] = 1
    ahead: Count = 1
    max_input_buffers: Annotated[int, Field(ge=1, le=10**6)] = 1
    separate_reduce_scatter_group: bool = False

    def plan(self, graph: CollectiveGraph, program: Program) -> ProgramPlan:  # noqa: ARG002 - a GraphPolicy
        """Gather units ahead of their use, and reduce them one behind the other."""
        return self.plan_units(program, sharded_units(program, self.unit_collectives, self.blocks_per_unit))

    def plan_units(self, program: Program, units: ShardedUnits) -> ProgramPlan:
        """Plan given units."""
        plan = reordered(program, *self.place_units(program, units))
        if not self.separate_reduce_scatter_group:
            return plan
        return replace(plan, apart=reduce_scatters(program, units))

    def place_units(
        self, program: Program, units: ShardedUnits, kept: Collection[int] = frozenset()
    ) -> tuple[list[Bucket], FloatArray]:
        """Return the buckets and the places of a plan; the buckets do not depend on the knobs.

        Parameters
        ----------
        program
            One in which kept units are gathered already (``pace.solver.graph.kept_gathers.with_kept``).
        kept
            Places in ``units.gathers``. Only the other units are gathered, and only they count as ahead.
        """
        places = _Places(program, units)
        every = [min(units.first_use[node] for node in unit) for unit in units.gathers]
        for number in kept:
            places.hold(units.gathers[number])
        gathered = [number for number in range(len(every)) if number not in kept]
        uses = [places.gather(units.gathers[number]) for number in gathered]
        for at, number in enumerate(gathered):
            # Right behind the wait for the unit so many before; the first ones behind that for the first.
            before = uses[at - self.ahead] if at >= self.ahead else every[0]
            is_ahead = at > 0 or before < uses[at]
            places.issue(units.gathers[number], before - (0.25 if is_ahead else 0.75))
        places.reduce(units.reductions, self.max_input_buffers, waits_first=True)
        return places.buckets, places.place


@knobs
class Blocks:
    """Buckets of one transformer block each, made by hand.

    ``manual_overlap_bucketing`` of ``torch._inductor.fx_passes.overlap_manual_scheduling`` (torch 2.13);
    torchtitan's SimpleFSDP calls it ``transformer_block_bucketing``. The next block's gather is issued before
    the wait for a block's own, and the wait for a block's gradients comes behind the issue of the next
    block's.

    Attributes
    ----------
    unit_collectives
        Number of parameters in each block; 0 for the blocks found in the graph.
    """

    unit_collectives: Count = 0

    def plan(self, graph: CollectiveGraph, program: Program) -> ProgramPlan:  # noqa: ARG002 - a GraphPolicy
        """Gather a block ahead, and wait for gradients a block later."""
        units = sharded_units(program, self.unit_collectives)
        places = _Places(program, units)
        uses = [places.gather(unit) for unit in units.gathers]
        for number, unit in enumerate(units.gathers):
            places.issue(unit, uses[number - 1] - 0.75 if number else -1.0)
        places.reduce(units.reductions, 1, waits_first=False)
        return places.plan()


@knobs
class ZeroThree:
    """DeepSpeed's ZeRO-3 with a complete trace (``runtime/zero/partitioned_param_coordinator.py``).

    Each parameter is a module of its own. Behind the wait for a parameter, those that the trace uses next are
    gathered in one call, until they have `prefetch_bucket_size` elements and at most `max_live_parameters`
    are gathered (``fetch_sub_module``). Gradients are reduced whenever the next one would make the bucket
    larger than `reduce_bucket_size`, after the bucket before is done (``zero/stage3.py``).

    Attributes
    ----------
    prefetch_bucket_size, max_live_parameters, reduce_bucket_size
        In elements, DeepSpeed's ``stage3_prefetch_bucket_size``, ``stage3_max_live_parameters`` and
        ``reduce_bucket_size``.
    element_bytes
        Size of an element where the graph names no dtype.
    """

    prefetch_bucket_size: Elements = 50_000_000
    max_live_parameters: Elements = 1_000_000_000
    reduce_bucket_size: Elements = 500_000_000
    element_bytes: Annotated[int, Field(ge=1, le=8)] = 2

    def plan(self, graph: CollectiveGraph, program: Program) -> ProgramPlan:
        """Follow the trace."""
        units = sharded_units(program, 1)
        places = _Places(program, units)
        gathers = [node for unit in units.gathers for node in unit]
        numel = _elements(graph, program, self.element_bytes)
        last_use = _last_use(program)
        fetched: set[int] = set()
        live: list[int] = []
        following = 0
        for number, node in enumerate(gathers):
            use = units.first_use[node]
            if node not in fetched:
                places.gather((node,))
                places.issue((node,), use - 0.75)
                fetched.add(node)
                live.append(node)
            following = max(following, number + 1)
            live = [each for each in live if last_use[each] >= use]
            most = min(
                self.max_live_parameters - sum(numel[each] for each in live), self.prefetch_bucket_size
            )
            ahead: list[int] = []
            while following < len(gathers) and sum(numel[each] for each in ahead) < most:
                ahead.append(gathers[following])
                following += 1
            for bucket in buckets_of(program, tuple(ahead)):
                places.gather(bucket)
                places.issue(bucket, use - 0.25)
            fetched.update(ahead)
            live += ahead
        reductions: list[list[int]] = []
        for node in (node for unit in units.reductions for node in unit):
            if (
                not reductions
                or sum(numel[each] for each in (*reductions[-1], node)) > self.reduce_bucket_size
            ):
                reductions.append([])
            reductions[-1].append(node)
        places.reduce([tuple(bucket) for bucket in reductions], 1, waits_first=True)
        return places.plan()


class _Places:
    """Where collectives and waits go; other nodes keep their places."""

    def __init__(self, program: Program, units: ShardedUnits) -> None:
        self._program = program
        self._units = units
        self.place: FloatArray = np.arange(len(program), dtype=np.float64)
        self.buckets: list[Bucket] = []

    def gather(self, unit: Sequence[int]) -> float:
        """Fuse a unit and wait for it right before its first use; return the place of that."""
        use = float(min(self._units.first_use[node] for node in unit))
        self.place[self._program.wait_of[list(unit)]] = use - 0.5
        self._fuse(unit)
        return use

    def hold(self, unit: Sequence[int]) -> None:
        """Put a unit that is gathered already, and the ops that serve only it, before everything else."""
        above = list(unit)
        while above:
            node = above.pop()
            self.place[node] = -1.0
            above += self._program.deps[node].tolist()

    def issue(self, unit: Sequence[int], place: float) -> None:
        """Issue a unit's gathers at a place, with the ops that serve only them."""
        for node in unit:
            self.place[node] = place
            self.place[self._units.feeders.get(node, [])] = place

    def reduce(self, units: Sequence[Sequence[int]], at_once: int, *, waits_first: bool) -> None:
        """Reduce units as they become ready, and wait for each when the one `at_once` behind it is issued."""
        issues = [float(max(unit)) for unit in units]
        for number, unit in enumerate(units):
            later = number + at_once
            at = issues[later] + (-0.25 if waits_first else 0.25) if later < len(units) else np.inf
            self.place[list(unit)] = issues[number]
            self.place[self._program.wait_of[list(unit)]] = at
            self._fuse(unit)

    def plan(self) -> ProgramPlan:
        """Return the plan."""
        return reordered(self._program, self.buckets, self.place)

    def _fuse(self, unit: Sequence[int]) -> None:
        self.buckets += [bucket for bucket in buckets_of(self._program, tuple(unit)) if len(bucket) > 1]


def _elements(graph: CollectiveGraph, program: Program, element_bytes: int) -> dict[int, int]:
    """Return the elements of each whole parameter or gradient."""
    sizes = np.maximum(program.input_bytes, program.output_bytes)
    keys = bucket_keys(graph)
    elements = {}
    for node in program.collectives().tolist():
        dtype = keys[program.key[node]][2]
        elements[node] = int(sizes[node]) // (element_bytes if dtype is None else ELEMENT_BYTES[dtype])
    return elements


def _last_use(program: Program) -> dict[int, int]:
    """Return the place of the last node that reads each collective's output or a view of it."""
    last: dict[int, int] = {}
    for node in range(len(program)):
        for dep in program.deps[node].tolist():
            last[int(program.storage[dep])] = node
    return {node: last.get(node, node) for node in program.collectives().tolist()}


Gib = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


@knobs
class Inductor:
    """``schedule_overlap_bucketing`` of ``torch._inductor.fx_passes`` (torch 2.13), with its own defaults.

    Attributes
    ----------
    max_in_flight_gb, max_compute_pre_fetch, max_coll_distance, max_memory_increase_gb,
    max_memory_increase_ratio
        Its parameters; sizes in GiB.
    bucket_cap_mb
        ``pre_bucketing_fsdp_collectives_bucket_cap_mb``, in MiB.
    device
        Decides what torch takes for a network and whether it counts memory: "cpu", as on a machine without a
        GPU, or "h100".
    """

    max_in_flight_gb: Gib = 5.0
    max_compute_pre_fetch: Annotated[int, Field(ge=0)] = 200
    max_coll_distance: Annotated[int, Field(ge=0)] = 200
    max_memory_increase_gb: Gib = 1.0
    max_memory_increase_ratio: Annotated[float, Field(ge=0, le=100)] = 0.05
    bucket_cap_mb: Annotated[float, Field(gt=0, le=1e6)] | None = None
    device: Literal["cpu", "h100"] = "cpu"

    def plan(self, graph: CollectiveGraph, program: Program) -> ProgramPlan:
        """Run the pass."""
        nodes = pass_graph(graph, program, self.bucket_cap_mb, self.device)
        limits = OverlapLimits(
            max_in_flight_bytes=int(self.max_in_flight_gb * GIBIBYTE),
            max_compute_pre_fetch=self.max_compute_pre_fetch,
            max_coll_distance=self.max_coll_distance,
            max_memory_increase_bytes=int(self.max_memory_increase_gb * GIBIBYTE),
            max_memory_increase_ratio=self.max_memory_increase_ratio,
            counts_memory=self.device != "cpu",
        )
        scheduler = OverlapScheduler(nodes, limits)
        order = scheduler.run()
        order, merged = OverlapBuckets(nodes, scheduler, order, self.max_coll_distance).run()
        members = {bucket[0]: bucket for bucket in merged}
        flat: list[int] = []
        buckets = []
        for node in order:
            start = nodes.start_of.get(node, node)
            stands_for = members.get(start, [start])
            if nodes.kind[node] == COLLECTIVE:
                bucket = tuple(each for member in stands_for for each in nodes.origins[member])
                if len(bucket) > 1:
                    buckets.append(bucket)
                flat += bucket
            else:
                whole = stands_for if start != node else [node]
                flat += [
                    each
                    for member in whole
                    for each in nodes.origins[nodes.wait_of[member] if start != node else member]
                ]
        return ProgramPlan(order=np.array(flat, dtype=np.int64), buckets=tuple(buckets))
