"""One rank of a contender: compiles or wraps the model as the contender does, and trains when it is asked."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.utils._runtime_estimation as roofline
from torch import fx
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.fx_passes.overlap_manual_scheduling import manual_overlap_bucketing
from torch.distributed.tensor import DTensor

from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.joining import join_torch
from benchmarks.harness.network.processes import Answer, answering
from benchmarks.studies.compiled_sharding.model import Transformer, fully_sharded
from pace.documents.collective_costs import SampledAllReduce
from pace.documents.graph.nodes import CollectiveOp
from pace.formats.node_list import COLLECTIVES
from pace.runtime.inductor import CollectivePlanner
from pace.runtime.inductor.fx_program import bytes_of, is_collective
from pace.runtime.inductor.node_times import NodeTimes, synchronize

FloatArray = npt.NDArray[np.float32]
Costs = Mapping[CollectiveOp, SampledAllReduce]


class BlockBuckets(CustomGraphPass):
    """Torch's pass with buckets by hand: one for each block, gathered one block ahead."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite the graph."""
        assert graph.owning_module is not None
        paths: list[list[str] | str] = [f"blocks.{number}" for number in range(self._blocks)]
        manual_overlap_bucketing(graph.owning_module, paths, insert_overlap_deps=True)

    def uuid(self) -> str:
        """Return what Inductor's cache adds to its keys."""
        return f"{self._blocks} blocks"


class TrainedRank:
    """A model as a contender trains it.

    Parameters
    ----------
    contender
        "none"; "pace"; "inductor", Inductor's overlap pass; "buckets", Inductor's buckets without this
        pass; "blocks", torch's pass with a bucket for each block; "fsdp2", which is not compiled.
    batch
        Number of sequences, and of tokens in each.
    costs
        What collectives cost, for "inductor", which also gets the times of ops that PACE measures. None:
        Inductor's own estimates, which assume an NVIDIA GPU.
    device
        Where it trains, with a process group for this device.
    """

    def __init__(
        self,
        contender: str,
        blocks: int,
        width: int,
        batch: tuple[int, int],
        costs: Costs | None,
        *,
        device: str = "cpu",
    ) -> None:
        self._device = torch.device(device)
        self._planner = CollectivePlanner() if contender == "pace" else None
        own_pass = BlockBuckets(blocks) if contender == "blocks" else self._planner
        if contender == "inductor":
            passes = config.aten_distributed_optimizations
            passes.enable_overlap_scheduling = True
            passes.collective_bucketing = True
            if costs is not None:
                if hasattr(passes, "compute_estimator"):  # torch 2.11 has no choice
                    passes.compute_estimator = "analytical"  # the other one measures with CUDA's events
                # Its type has one argument less than the pass gives.
                passes.custom_runtime_estimation = _estimation(costs)  # type: ignore[assignment]
        if contender in ("inductor", "blocks") and device == "cpu":
            # Torch asks Triton for the rates of a device even where it does not need them.
            vars(roofline).update(get_gpu_dram_gbps=lambda: 10.0, get_device_tflops=lambda _: 0.1)
        if contender == "buckets":
            config.bucket_all_gathers_fx = "all"
            config.bucket_reduce_scatters_fx = "all"
        options: dict[str, Any] = {"post_grad_custom_post_pass": own_pass} if own_pass else {}
        self._model = (
            fully_sharded(blocks, width, device)
            if contender == "fsdp2"
            else Transformer(blocks, width).to(device)
        )
        self._step: Callable[[torch.Tensor], torch.Tensor] = (
            self._model
            if contender == "fsdp2"
            else torch.compile(self._model, fullgraph=True, options=options)
        )
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._shape = (*batch, width)
        self._generator = torch.Generator(device).manual_seed(dist.get_rank())

    def train(self, steps: int) -> list[float]:
        """Return the seconds of each forward and backward pass."""
        seconds = []
        for _ in range(steps):
            batch = torch.randn(self._shape, generator=self._generator, device=self._device)
            self._optimizer.zero_grad()
            synchronize(self._device)
            dist.barrier()
            synchronize(self._device)
            began = time.perf_counter()
            torch.autograd.backward(self._step(batch))
            synchronize(self._device)
            seconds.append(time.perf_counter() - began)
            self._optimizer.step()
        return seconds

    def weights(self) -> list[FloatArray]:
        """Return this rank's shards."""
        own = (each.to_local() if isinstance(each, DTensor) else each for each in self._model.parameters())
        return [each.detach().cpu().numpy() for each in own]

    def documents(self) -> list[tuple[bytes, bytes]]:
        """Return each graph that was planned, and its plan."""
        assert self._planner is not None
        return [(each.graph.to_json(), each.schedule.to_json()) for each in self._planner.planned]


def _estimation(costs: Costs) -> Callable[[fx.Node, int | None], float]:
    """Return the milliseconds of nodes as PACE has them; buckets have other sizes.

    All ranks take the times of rank 0. With times of its own, each rank would make buckets of its own, and
    collectives of different sizes would meet. What the pass adds, such as the copies of a bucket, is measured
    by no rank, and counts as free.
    """
    times = NodeTimes(torch.device("cpu"), None)
    curves = {op: cost.cost(dist.get_world_size()) for op, cost in costs.items()}
    seconds: dict[str, float] = {}
    timed: set[fx.Graph] = set()

    def agree(graph: fx.Graph) -> None:
        # The order in which the pass asks is not the same on all ranks, but that of the nodes is.
        timed.add(graph)
        ops = [node for node in graph.nodes if _computes(node)]
        answer = [{node.name: times.duration_s(node) for node in ops} if dist.get_rank() == 0 else {}]
        dist.broadcast_object_list(answer, 0)
        seconds.update(answer[0])

    def estimated(node: fx.Node, size: int | None) -> float:
        if is_collective(node):
            assert isinstance(node.target, torch._ops.OpOverload)
            source = node.args[0]
            assert isinstance(source, fx.Node)
            own = bytes_of(source.meta["val"]) if size is None else size
            return float(curves[COLLECTIVES[node.target._opname]](float(max(1, own)))) * 1e3
        if not _computes(node):
            return 0.0
        if node.graph not in timed:
            agree(node.graph)
        return seconds.get(node.name, 0.0) * 1e3

    return estimated


def _computes(node: fx.Node) -> bool:
    return (
        isinstance(node.target, torch._ops.OpOverload)
        and node.target.namespace == "aten"
        and not is_collective(node)
    )


def start(rank: int, on: Sequence[Host], port: int, contender: str, *arguments: Any) -> Answer:
    """Join the other ranks and be one of the contender's."""
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    join_torch(rank, on, port)
    return answering(TrainedRank(contender, *arguments))
