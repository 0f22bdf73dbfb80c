"""The pass as a policy."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.simulation.graph.inductor.bucketing import OverlapBuckets
from pace.simulation.graph.inductor.overlap import GIBIBYTE, OverlapLimits, OverlapScheduler
from pace.simulation.graph.inductor.pass_graph import pass_graph
from pace.simulation.knobs import knobs
from pace.solver.graph.program import COLLECTIVE, Program, ProgramPlan

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
