"""One run of a graph under a policy: when each node runs, and the memory in use."""

from dataclasses import dataclass

import numpy as np

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.schedule import Schedule
from pace.planning.graph.arrays import program_of
from pace.simulation.graph.policies import GraphPolicy
from pace.solver.arrays import FloatArray
from pace.solver.graph.memory import MemoryInUse, memory_in_use
from pace.solver.graph.program import Program, ProgramPlan
from pace.solver.graph.timeline import Timeline, run


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSimulation:
    """A graph under a policy.

    Attributes
    ----------
    program
        The graph as arrays.
    plan
        What the policy decided.
    timeline
        When each node runs.
    memory
        What is in use at each step.
    """

    program: Program
    plan: ProgramPlan
    timeline: Timeline
    memory: MemoryInUse

    @property
    def iteration_s(self) -> float:
        """When the last op or collective ends, in seconds."""
        return self.timeline.end_s

    @property
    def iterations_s(self) -> FloatArray:
        """The length of the only run, in seconds: an array of shape (1,)."""
        return np.array([self.timeline.end_s])

    @property
    def num_calls(self) -> int:
        """Collectives that are issued; a bucket is one."""
        fused = sum(len(bucket) - 1 for bucket in self.plan.buckets)
        return len(self.program.collectives()) - fused


def run_schedule(graph: CollectiveGraph, schedule: Schedule) -> GraphSimulation:
    """Simulate a schedule of a graph."""
    return _run(
        program_of(graph),
        ProgramPlan(
            order=np.array(schedule.graph_plan.order, dtype=np.int64),
            buckets=tuple(
                tuple(graph.numbers[name] for name in group.tensors)
                for group in schedule.groups
                if len(group.tensors) > 1
            ),
        ),
    )


def run_graph_policy(graph: CollectiveGraph, policy: GraphPolicy) -> GraphSimulation:
    """Simulate a graph under a policy."""
    program = program_of(graph)
    return _run(program, policy.plan(graph, program))


def _run(program: Program, plan: ProgramPlan) -> GraphSimulation:
    return GraphSimulation(
        program=program, plan=plan, timeline=run(program, plan), memory=memory_in_use(program, plan)
    )
