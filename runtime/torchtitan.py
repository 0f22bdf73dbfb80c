"""PACE in torchtitan: add ``--override.imports pace.runtime.torchtitan.planned`` to the command.

Needs torchtitan 0.3 and its graph trainer (``--module graph_trainer.llama3`` and others), which traces
forward pass, loss and backward pass into one graph. PACE takes the place of the pass that buckets the
collectives of each transformer block.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import fx
from torch._inductor import config as inductor_config

try:
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.config.override import override
    from torchtitan.experiments.graph_trainer import passes as titan_passes
    from torchtitan.experiments.graph_trainer.registry import PASS_PIPELINE_REGISTRY, POST_INIT_HOOKS
except ImportError as error:
    raise ImportError(
        f"pace.runtime.torchtitan needs torchtitan 0.3 ({error}): pip install torchtitan==0.3.0",
        name=error.name,
    ) from error

from pace.errors import InvalidOptions, InvalidUse
from pace.runtime.argument_checks import is_number, refusal
from pace.runtime.inductor import CollectivePlanner

__all__ = ["planned"]

_GRAPH_TRAINER = "torchtitan.experiments.graph_trainer.trainer"
_REPLACED = "joint_transformer_block_bucketing_reordering_pass"
_WHOLE = "full_inductor_compilation_pass"
# From here on, the graph is not what runs.
_TERMINAL = frozenset(
    {"annotate_flex_attention_for_regional_inductor_pass", "regional_inductor_pass", _WHOLE, "cudagraph_pass"}
)

GraphPass = Callable[..., fx.GraphModule]


@override(  # type: ignore[untyped-decorator]  # torchtitan is not installed where types are checked
    target=MetricsProcessor.Config, description="PACE plans the collectives of the traced graph"
)
def planned(
    config: MetricsProcessor.Config,
    *,
    memory_gb: float | None = None,
    plan_folder: str | None = None,
    **others: object,
) -> MetricsProcessor.Config:
    """Let PACE plan the graphs of this job. torchtitan calls it, and the configuration stays as it is.

    Parameters
    ----------
    memory_gb
        Most memory that the graph may use on a rank, in 10^9 bytes. None: 1.1 times the memory that the graph
        uses in its own order.
    plan_folder
        Where rank 0 keeps plans and finds them again in later runs of the job.

    Raises
    ------
    InvalidOptions
        If an option does not exist, or its value is not valid.
    InvalidUse
        If the job does not train with torchtitan's graph trainer.
    """
    if others:
        raise InvalidOptions(
            f"no option {', '.join(others)}: pace.runtime.torchtitan.planned has memory_gb, plan_folder"
        )
    if memory_gb is not None and (not is_number(memory_gb) or memory_gb <= 0):
        raise refusal("memory_gb", memory_gb, "a positive number")
    if _GRAPH_TRAINER not in sys.modules:
        raise InvalidUse(
            "this job has no graph that PACE can plan, because FSDP2 communicates outside of graphs: train "
            "with torchtitan's graph trainer, for example --module graph_trainer.llama3 "
            "--config graph_trainer_llama3_8b"
        )
    memory_bytes = None if memory_gb is None else int(memory_gb * 1e9)
    for name in {"default", *PASS_PIPELINE_REGISTRY}:
        pipeline = PASS_PIPELINE_REGISTRY.get(name, titan_passes.construct_default_graph_passes)
        if isinstance(pipeline, _PlannedPipeline):
            pipeline = pipeline.theirs
        PASS_PIPELINE_REGISTRY[name] = _PlannedPipeline(pipeline, memory_bytes, plan_folder)
        hook = POST_INIT_HOOKS.get(name)
        POST_INIT_HOOKS[name] = partial(_refuse_what_moves_collectives, hook)
    return config


@dataclass(frozen=True, slots=True)
class _PlannedPipeline:
    """A pipeline of passes in which PACE plans collectives."""

    theirs: Callable[..., list[GraphPass]]
    memory_bytes: int | None
    plan_folder: str | None

    def __call__(self, traced: Any, config: Any, **options: Any) -> list[GraphPass]:
        passes = [each for each in self.theirs(traced, config, **options) if _name(each) != _REPLACED]
        planner = CollectivePlanner(memory_bytes=self.memory_bytes, plan_folder=self.plan_folder)
        place = next((place for place, each in enumerate(passes) if _name(each) in _TERMINAL), len(passes))
        if place < len(passes) and _name(passes[place]) == _WHOLE:
            passes[place] = partial(_compile_planned, planner, passes[place])
        else:
            passes.insert(place, partial(_plan, planner))
        return passes


def _plan(planner: CollectivePlanner, module: fx.GraphModule, _inputs: Any) -> fx.GraphModule:
    planner.plan_interpreted(module.graph)
    module.recompile()
    return module


def _compile_planned(
    planner: CollectivePlanner, whole: GraphPass, module: fx.GraphModule, inputs: Any
) -> fx.GraphModule:
    with inductor_config.patch(post_grad_custom_post_pass=planner):
        return whole(module, inputs)


def _name(each: GraphPass) -> str:
    return str(getattr(each.func if isinstance(each, partial) else each, "__name__", ""))


def _refuse_what_moves_collectives(hook: Callable[[Any], None] | None, trainer: Any) -> None:
    """Refuse a job in which no pass of PACE runs, or another pass moves collectives after it."""
    compile_, parallelism = trainer.config.compile, trainer.config.parallelism
    for flag, is_set, instead in (
        ("--compile.mode", compile_.mode != "aot_fx_trace", "aot_fx_trace"),
        ("--compile.enable-passes", not compile_.enable_passes, "True"),
        ("--compile.precompile-artifact-dir", bool(compile_.precompile_artifact_dir), "no folder"),
        ("--compile.enable-async-tensor-parallel", compile_.enable_async_tensor_parallel, "False"),
        ("--compile.enable-fsdp-dense-region-overlap", compile_.enable_fsdp_dense_region_overlap, "False"),
        ("--compile.ep-overlap.enabled", compile_.ep_overlap.enabled, "False"),
        ("--parallelism.pipeline-parallel-degree", parallelism.pipeline_parallel_degree > 1, "1"),
    ):
        if is_set:
            raise InvalidUse(f"PACE plans jobs of torchtitan only with {flag} set to {instead}")
    if hook is not None:
        hook(trainer)
