"""What ranks of tests do: train a small sharded model that Inductor compiles, with and without a planner."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import pace
from pace.device_rates import DeviceRates
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.graph.nodes import CollectiveOp

WIDTH, LAYERS, STEPS = 16, 3, 3
RATES = DeviceRates(tflops=1e-5, memory_gbytes_per_s=1.0)
KINDS: tuple[CollectiveOp, ...] = ("all-gather", "reduce-scatter", "all-reduce")
LATE = dict.fromkeys(KINDS, AffineAllReduce(latency_s=1e-3, seconds_per_byte=1e-9))
WIDE = dict.fromkeys(KINDS, AffineAllReduce(latency_s=1e-9, seconds_per_byte=1e-6))
PLENTY = 1 << 30


class ShardedLayers(nn.Module):
    """Layers whose weights are gathered before use, and whose gradients are reduce-scattered."""

    def __init__(self, shards: Any) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.group = shards
        rank, ranks = dist.get_rank(shards), dist.get_world_size(shards)
        self.shards = nn.ParameterList(
            nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator).chunk(ranks)[rank] / WIDTH**0.5)
            for _ in range(LAYERS)
        )

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        for shard in self.shards:
            whole = functional.all_gather_tensor_autograd(shard, 0, self.group)
            batch = torch.relu(batch @ whole)
        return batch.square().mean()


class OtherLayers(ShardedLayers):
    """A model that differs in one op."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return super().forward(torch.sigmoid(batch))


@contextlib.contextmanager
def inductor(passes: Any, *, generate: bool = False) -> Iterator[None]:
    """Compile with a pass: ops are called one by one, with a cache of its own, unless code is generated."""
    from torch._inductor import config

    torch._dynamo.reset()
    cache = contextlib.nullcontext() if generate else torch._inductor.utils.fresh_cache()
    with config.patch(post_grad_custom_post_pass=passes, fallback_by_default=not generate), cache:
        yield


def train(model: ShardedLayers, seed: int, **options: Any) -> list[torch.Tensor]:
    """Train a model compiled with options; return the shards after every step."""
    compiled = torch.compile(model, fullgraph=True, options=options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        compiled(torch.randn(4, WIDTH, generator=generator)).backward()
        optimizer.step()
        found += [each.detach().clone() for each in model.parameters()]
    return found


def same_bits(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Return whether all tensors have the same bits."""
    return all(
        torch.equal(ours.view(torch.int32), theirs.view(torch.int32))
        for ours, theirs in zip(one, other, strict=True)
    )


def issued_in_code(code: list[str]) -> list[str]:
    """Return the collectives that generated code issues, in their order."""
    return [
        line.split("_c10d_functional.")[1].split(".")[0].removesuffix("_out")
        for text in code
        for line in text.splitlines()
        if line.partition("(")[0].split(" = ")[-1].strip().startswith("torch.ops._c10d_functional.")
        and "wait_tensor" not in line
    ]


def compare(
    rank: int,
    folder: str,
    names: tuple[str, ...] = ("late", "kept", "wide", "measured"),
    generate: bool = False,
) -> dict[str, Any]:
    """Train as Inductor compiles the model, and with plans of several settings."""
    from torch._inductor.utils import run_and_get_code

    from pace.runtime.inductor import CollectivePlanner

    with inductor(None, generate=generate):
        plain = train(ShardedLayers(dist.group.WORLD), rank)
    found: dict[str, Any] = {}
    settings: dict[str, dict[str, Any]] = {
        "late": {"costs": LATE, "rates": RATES, "memory_bytes": PLENTY, "plan_folder": folder},
        "kept": {"costs": LATE, "rates": RATES, "memory_bytes": PLENTY, "plan_folder": folder},
        "wide": {"costs": WIDE, "rates": RATES},
        "measured": {},
    }
    for name in names:
        planner = CollectivePlanner(**settings[name])
        with inductor(planner, generate=generate):
            shards, code = run_and_get_code(train, ShardedLayers(dist.group.WORLD), rank)
        found[name] = {
            "is equal": same_bits(shards, plain),
            "violations": [pace.check(each.graph, each.schedule) for each in planner.planned],
            "schedules": [each.schedule.to_json() for each in planner.planned],
            "planned order": [
                {"all-gather": "all_gather_into_tensor", "reduce-scatter": "reduce_scatter_tensor"}[
                    transfer.op
                ]
                for each in planner.planned
                for transfer in each.schedule.transfers
            ],
            "order in code": issued_in_code(code),
            "is generated": any("cpp_fused" in text for text in code),
            "collectives": sum(
                len(group.tensors) for each in planner.planned for group in each.schedule.groups
            ),
        }
    return found


def train_on_mesh(rank: int) -> dict[str, Any]:
    """Train on two groups of two ranks each, whose names differ between ranks."""
    from pace.runtime.inductor import CollectivePlanner

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    with inductor(None):
        plain = train(ShardedLayers(mesh["shards"].get_group()), rank)
    planner = CollectivePlanner(costs=LATE, rates=RATES, memory_bytes=PLENTY)
    with inductor(None):
        model = ShardedLayers(mesh["shards"].get_group())
        planned = train(model, rank, post_grad_custom_post_pass=planner)
    return {
        "is equal": same_bits(planned, plain),
        "schedules": [each.schedule.to_json() for each in planner.planned],
    }


def _train_in_turn(passes: Any, rank: int) -> list[torch.Tensor]:
    """Train two models in turn; the first batches of another size compile both again."""
    with inductor(passes):
        models = [ShardedLayers(dist.group.WORLD), OtherLayers(dist.group.WORLD)]
        steps = [
            (torch.compile(model, fullgraph=True, dynamic=False), torch.optim.SGD(model.parameters(), lr=0.5))
            for model in models
        ]
        generator = torch.Generator().manual_seed(rank)
        for rows in (4, 4, 6):
            for compiled, optimizer in steps:
                optimizer.zero_grad()
                compiled(torch.randn(rows, WIDTH, generator=generator)).backward()
                optimizer.step()
        return [each.detach().clone() for model in models for each in model.parameters()]


def train_in_turn(rank: int) -> tuple[bool, list[int]]:
    """Train two models with one planner; return whether bits are equal, and its graphs' input bytes."""
    from pace.runtime.inductor import CollectivePlanner

    plain = _train_in_turn(None, rank)
    planner = CollectivePlanner(costs=LATE, rates=RATES, memory_bytes=PLENTY)
    return same_bits(_train_in_turn(planner, rank), plain), [
        each.graph.resident_bytes for each in planner.planned
    ]


class GatheredBatches(ShardedLayers):
    """A model that gathers its batch, whose size is only known while the graph runs."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        whole = functional.all_gather_tensor(batch, 0, self.group)
        return super().forward(torch.relu(whole))


def train_on_batches_of_any_size(rank: int, *, generate: bool = False) -> tuple[bool, int]:
    """Compile for batches of all sizes; return whether bits are equal, and the number of planned graphs."""
    from pace.runtime.inductor import CollectivePlanner

    found = []
    planner = CollectivePlanner(costs=WIDE, rates=RATES, memory_bytes=PLENTY)
    for passes in (None, planner):
        with inductor(passes, generate=generate):
            model = GatheredBatches(dist.group.WORLD)
            compiled = torch.compile(model, fullgraph=True, dynamic=True)
            generator = torch.Generator().manual_seed(rank)
            for rows in (4, 6, 3):
                compiled(torch.randn(rows, WIDTH, generator=generator)).backward()
            found.append([each.grad for each in model.parameters() if each.grad is not None])
    return same_bits(*found), len(planner.planned)


def error_of(rank: int, case: str) -> str:
    """Return the error of a job that cannot be planned."""
    from pace.runtime.inductor import CollectivePlanner

    model_class = OtherLayers if case == "other model" and rank == 1 else ShardedLayers
    options: dict[str, Any] = {"costs": LATE, "rates": RATES}
    if case == "one rank compiles":
        options["timeout_s"] = 2.0
    if case == "small memory":
        options["memory_bytes"] = 3000
    if case == "no cost":
        options["costs"] = {"reduce-scatter": LATE["reduce-scatter"]}
    if case == "other options" and rank == 1:
        options["memory_bytes"] = 1 << 20
    if case == "bad option":
        options["memory_bytes"] = 0
    if case == "bad folder":
        options["plan_folder"] = 5
    try:
        planner = CollectivePlanner(**options)
        with inductor(planner):
            if case == "one rank compiles":
                if rank == 1:
                    train(model_class(dist.group.WORLD), rank)
            elif case == "other pass":
                from torch._inductor import config

                with config.patch(bucket_all_gathers_fx="all"):
                    train(model_class(dist.group.WORLD), rank)
            else:
                train(model_class(dist.group.WORLD), rank)
    except Exception as error:
        cause = getattr(error, "inner_exception", error)  # as torch wraps it
        return f"{type(cause).__name__}: {cause}"
    return "no error"
