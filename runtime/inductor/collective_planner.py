"""The pass that plans graphs while Inductor compiles them."""

import hashlib
import os
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import fx
from torch._dispatch.python import no_python_dispatcher
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._subclasses.fake_tensor import unset_fake_temporarily

from pace.checker.graph.check import check_graph
from pace.device_rates import DeviceRates
from pace.documents.collective_costs import AffineAllReduce, SampledAllReduce
from pace.documents.graph.collective_graph import CollectiveGraph, load_graph, parse_graph
from pace.documents.graph.nodes import CollectiveOp
from pace.documents.options import Options
from pace.documents.schedule import Schedule, load_schedule, parse_schedule
from pace.errors import InvalidOptions, InvalidSchedule, InvalidUse
from pace.kinds import optimize
from pace.order.inputs.job_groups import RankFile
from pace.planning.graph.arrays import program_of
from pace.runtime.argument_checks import is_number, refusal, require_instance, require_whole
from pace.runtime.event_log import log
from pace.runtime.inductor.fx_program import FxProgram, GroupCall, complete_values, read_fx
from pace.runtime.inductor.node_times import CollectiveTimer, NodeTimes
from pace.runtime.inductor.rank_agreement import CompilingRanks
from pace.runtime.inductor.rewrite import apply_plan, issued, prove_order, take_sizes_after_waits, tie
from pace.solver.graph.list_schedule import UNLIMITED, ListScheduler
from pace.version import __version__

MEMORY_FACTOR = 1.1
"""The default budget, as a multiple of the memory that a graph uses in its own order."""

CollectiveCost = AffineAllReduce | SampledAllReduce


class ComputeTimes(NamedTuple):
    """What the device takes for each node in seconds, its copies in bytes/s, and its slow-down by traffic."""

    nodes_s: tuple[float, ...]
    copy_bytes_per_s: float
    slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGraph:
    """A graph that was planned, and its plan. Both are documents: ``pace.check`` judges them."""

    graph: CollectiveGraph
    schedule: Schedule


class CollectivePlanner(CustomGraphPass):
    """Plan the collectives of every graph that Inductor compiles: set it as ``post_grad_custom_post_pass``.

    Forward and backward pass are planned one by one. All ranks compare their graphs and follow rank 0's plan.
    Each plan is checked, and the new order of collectives is proved not to hang. Graphs without collectives
    stay as they are.

    Every rank must create it, after ``init_process_group``, and compile the same model.

    Parameters
    ----------
    memory_bytes
        Most memory in use at once on a rank in each graph, inputs included. None: 1.1 times the memory that
        the graph uses in its own order.
    rates
        The device's rates, from which durations are computed. None: ops are measured on all ranks at the
        same time, and the median counts.
    costs
        What each kind of collective costs, for every process group, by bytes of its input. None: measured in
        each process group.
    plan_folder
        Where rank 0 keeps plans and finds them again in later runs of the job.
    process_group
        The ranks that compile the same model; None for all.
    timeout_s
        Most seconds to wait for other ranks while they compile.

    Raises
    ------
    InvalidOptions, InvalidUse
        If an argument is not valid, differs between ranks, or there is no process group.
    """

    def __init__(
        self,
        *,
        memory_bytes: int | None = None,
        rates: DeviceRates | None = None,
        costs: Mapping[CollectiveOp, CollectiveCost] | None = None,
        plan_folder: str | Path | None = None,
        process_group: dist.ProcessGroup | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        if memory_bytes is not None:
            require_whole("memory_bytes", memory_bytes, least=1)
        if not is_number(timeout_s) or not 0 < timeout_s <= 1e6:
            raise refusal("timeout_s", timeout_s, "a positive number of seconds")
        if plan_folder is not None:
            require_instance("plan_folder", plan_folder, (str, Path), "the path of a folder")
        if rates is not None:
            require_instance("rates", rates, DeviceRates, "a DeviceRates")
        if not dist.is_initialized():
            raise InvalidUse("there is no process group: call torch.distributed.init_process_group before")
        self.planned: list[PlannedGraph] = []
        self._memory_bytes = memory_bytes
        self._rates = rates
        self._costs = None if costs is None else dict(costs)
        self._folder = None if plan_folder is None else PlanFolder(Path(plan_folder))
        self._ranks = CompilingRanks(process_group, timeout_s)
        self._times: NodeTimes | None = None
        self._collectives: CollectiveTimer | None = None
        self._found: dict[str, PlannedGraph] = {}
        self._run = self._agree()

    def _agree(self) -> str:
        """Refuse options that differ; return a name of this run that all ranks have in common."""
        stated = self._ranks.gather((self._options(), uuid.uuid4().hex), "the start")
        first, run = stated[0]
        for rank, (options, _) in zip(self._ranks.ranks, stated, strict=True):
            for name, value in options.items():
                if value != first[name]:
                    raise InvalidOptions(
                        f"the arguments differ between ranks: {name} is {value} on rank {rank} and "
                        f"{first[name]} on rank {self._ranks.ranks[0]}"
                    )
        return run

    def _options(self) -> dict[str, str]:
        costs = [f"{op} {cost.model_dump_json()}" for op, cost in sorted((self._costs or {}).items())]
        return {"memory_bytes": str(self._memory_bytes), "rates": str(self._rates), "costs": str(costs)}

    def uuid(self) -> str:
        """Return what Inductor's cache adds to its keys.

        Compiled graphs are not found again in another run or by another rank. A rank that took one from the
        cache would not take part in the comparison, and buckets contain the rank's number.
        """
        source = get_hash_for_files(tuple(sorted(map(str, Path(__file__).parent.glob("*.py")))), __version__)
        place = f"rank {self._ranks.rank} of {len(self._ranks.ranks)}"
        return f"{source.hex()} {self._options()} {place} {self._run}"

    def __deepcopy__(self, _memo: dict[int, object]) -> "CollectivePlanner":
        """Return the planner itself: torch copies options, but ranks meet in one planner."""
        return self

    def __call__(self, graph: fx.Graph) -> None:
        """Plan a graph and rewrite it.

        Raises
        ------
        InvalidGraph
            If a collective has no wait, or cannot be planned.
        InvalidOptions
            If the memory is too small.
        ScheduleMismatch
            On every rank, if the graphs of ranks differ.
        InvalidSchedule
            If a plan failed a check. This is a defect of PACE.
        InvalidUse
            If Inductor would move collectives, too.
        """
        self._rewrite(graph, fused=True)

    def plan_interpreted(self, graph: fx.Graph) -> None:
        """Plan and rewrite a graph that is not given to Inductor, but runs node by node.

        Raises
        ------
        PaceError
            As if the planner is called.
        """
        self._rewrite(graph, fused=False)

    def _rewrite(self, graph: fx.Graph, *, fused: bool) -> None:
        if not any(_communicates(node) for node in graph.nodes):
            return
        # Through the dispatcher in Python, collectives would keep the GIL, for which Gloo's threads may wait.
        with no_python_dispatcher(), unset_fake_temporarily(), torch.no_grad():
            self._plan(graph, fused)

    def _plan(self, graph: fx.Graph, fused: bool) -> None:
        ranks = self._ranks
        name = f"graph {len(self.planned)}"
        program = ranks.together(lambda: self._read(graph, name), name)
        ranks.refuse_other_graphs(program, name)
        found = self._plan_of(program, _device(graph), fused)
        sent = ranks.together(lambda: self._carry_out(graph, program, found.schedule), f"{name}'s plan")
        prove_order(name, ranks.ranks, ranks.gather(sent, f"{name}'s proof"))
        if fused:
            tie(graph)
        self.planned.append(found)

    @staticmethod
    def _carry_out(graph: fx.Graph, program: FxProgram, schedule: Schedule) -> RankFile:
        apply_plan(graph, program, schedule)
        return issued(graph, program)

    def _read(self, graph: fx.Graph, name: str) -> FxProgram:
        _refuse_other_passes()
        complete_values(graph)
        take_sizes_after_waits(graph)
        return read_fx(graph, name)

    def _plan_of(self, program: FxProgram, device: torch.device, fused: bool) -> PlannedGraph:
        # Batches of other sizes make graphs of the same nodes; ranks may have batches of different sizes.
        sizes = [program.untimed.resident_bytes, *(node.allocates_bytes for node in program.untimed.nodes)]
        sizes = self._ranks.gather(sizes, "the sizes of tensors")[0]
        terms = f"{program.sha256} {sizes} {fused} {self._options()} {self._ranks.hosts}"
        key = hashlib.sha256(terms.encode()).hexdigest()
        if key not in self._found:
            kept = self._ranks.from_first(lambda: self._kept(key, program), "the plan folder")
            if kept is None:
                costs = self._measure(program, device)
                times = self._compute_times(program, device, fused)
                kept = self._ranks.from_first(lambda: self._search(program, costs, times, key), "the plan")
            graph, schedule = parse_graph(kept[0]), parse_schedule(kept[1])
            self._found[key] = PlannedGraph(graph=graph, schedule=schedule)
        return self._found[key]

    def _kept(self, key: str, program: FxProgram) -> tuple[bytes, bytes] | None:
        kept = None if self._folder is None else self._folder.find(key)
        # Files may have been renamed, and another version of PACE may have read other dependencies.
        if kept is None or not program.is_of(kept[0]):
            return None
        return kept[0].to_json(), kept[1].to_json()

    def _measure(self, program: FxProgram, device: torch.device) -> Mapping[GroupCall, CollectiveCost]:
        if self._costs is None:
            times = self._collectives = self._collectives or CollectiveTimer(device)
            return self._ranks.together(lambda: times.measure(program), "measured collectives")
        for call in program.calls.values():
            if call.op not in self._costs:
                raise InvalidOptions(f"costs has no {call.op}, which {program.untimed.name} has: add it")
        return {call: self._costs[call.op] for call in program.calls.values()}

    def _compute_times(self, program: FxProgram, device: torch.device, fused: bool) -> ComputeTimes:
        """Return the times of compute: medians of all ranks.

        All ranks measure at the same time, because they compute at the same time.
        """
        own = self._ranks.together(lambda: self._timed(program, device, fused), "measured ops")
        nodes_s, rates, slowdowns = zip(*self._ranks.gather(own, "times of ops"), strict=True)
        return ComputeTimes(tuple(map(median, zip(*nodes_s, strict=True))), median(rates), median(slowdowns))

    def _timed(self, program: FxProgram, device: torch.device, fused: bool) -> ComputeTimes:
        if self._times is None:
            self._times = NodeTimes(device, self._rates)
        times = self._times
        slowdown = 1.0 if self._collectives is None else self._collectives.compute_slowdown
        nodes_s = tuple(times.duration_s(node, fused=fused) for node in program.nodes)
        return ComputeTimes(nodes_s, times.memory_bytes_per_s, slowdown)

    def _search(
        self, program: FxProgram, costs: Mapping[GroupCall, CollectiveCost], times: ComputeTimes, key: str
    ) -> tuple[bytes, bytes]:
        start = time.perf_counter()
        graph = program.timed(
            {node.name: each for node, each in zip(program.nodes, times.nodes_s, strict=True)},
            costs,
            wires=tuple(self._wire(group.ranks) for group in program.groups),
            copy_bytes_per_s=times.copy_bytes_per_s,
            compute_slowdown=times.slowdown,
        )
        now = ListScheduler(program_of(graph), UNLIMITED).as_it_is()
        budget = self._memory_bytes or int(MEMORY_FACTOR * now.peak_bytes)
        schedule = optimize(graph, Options(exchange="graph", memory_bytes=budget))
        violations = check_graph(graph, schedule)
        if violations:
            raise InvalidSchedule(f"{graph.name}: {violations[0]}")
        if self._folder is not None:
            self._folder.store(key, graph, schedule)
        log.info(
            "pace.graph_planned",
            graph=graph.name,
            nodes=len(graph.nodes),
            collectives=sum(len(group.tensors) for group in schedule.groups),
            buckets=len(schedule.groups),
            unplanned_s=now.end_s,
            planned_s=schedule.predicted.iteration_s,
            bound_s=schedule.predicted.lower_bound_s,
            search_s=time.perf_counter() - start,
        )
        return graph.to_json(), schedule.to_json()

    def _wire(self, members: tuple[int, ...]) -> str:
        host_of = dict(zip(self._ranks.ranks, self._ranks.hosts, strict=True))
        hosts = {host_of.get(rank, rank) for rank in members}
        return "within hosts" if len(hosts) == 1 else "between hosts"


def _communicates(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and "c10d_functional" in target.namespace


def _device(graph: fx.Graph) -> torch.device:
    for node in graph.nodes:
        value = node.meta.get("val")
        if _communicates(node) and isinstance(value, torch.Tensor):
            return value.device
    return torch.device("cpu")


def _refuse_other_passes() -> None:
    other = config.aten_distributed_optimizations
    for name, is_on in (
        ("reorder_for_compute_comm_overlap", config.reorder_for_compute_comm_overlap),
        ("bucket_all_gathers_fx", config.bucket_all_gathers_fx != "none"),
        ("bucket_reduce_scatters_fx", config.bucket_reduce_scatters_fx != "none"),
        ("bucket_all_reduces_fx", config.bucket_all_reduces_fx != "none"),
        ("_micro_pipeline_tp", config._micro_pipeline_tp),
        ("aten_distributed_optimizations.enable_overlap_scheduling", other.enable_overlap_scheduling),
    ):
        if is_on:
            raise InvalidUse(
                f"torch._inductor.config.{name} moves collectives that PACE plans: turn one of the two off"
            )


class PlanFolder:
    """A folder with two documents for each plan, ``KEY.graph.json`` and ``KEY.schedule.json``.

    With it, a job that starts again need not measure and plan again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str) -> tuple[CollectiveGraph, Schedule] | None:
        """Return the graph and the plan of a key, or None.

        Raises
        ------
        InvalidGraph, InvalidSchedule
            If a document was damaged, or the plan is not one of the graph.
        """
        try:
            graph, schedule = load_graph(self._graph(key)), load_schedule(self._schedule(key))
        except FileNotFoundError:
            return None
        violations = check_graph(graph, schedule)
        if violations:
            raise InvalidSchedule(f"{self._schedule(key)}: {violations[0]}; delete the file to plan again")
        return graph, schedule

    def store(self, key: str, graph: CollectiveGraph, schedule: Schedule) -> None:
        """Write both documents; a reader never finds part of one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path, document in (
            (self._graph(key), graph.to_json()),
            (self._schedule(key), schedule.to_json()),
        ):
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(document)
            os.replace(file.name, path)

    def _graph(self, key: str) -> Path:
        return self._folder / f"{key}.graph.json"

    def _schedule(self, key: str) -> Path:
        return self._folder / f"{key}.schedule.json"
