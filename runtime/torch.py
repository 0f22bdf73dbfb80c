"""DistributedOptimizer for jobs that use torch.distributed."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from pace.documents.schedule import Schedule
from pace.runtime.control.options import Mode, Op, WrapperOptions, connecting_timeout_s
from pace.runtime.control.plan_source import PlanSource
from pace.runtime.optimizer.start import released_on_failure
from pace.runtime.optimizer.wrapped_optimizer import WrappedOptimizer
from pace.runtime.replanning import Replanning
from pace.runtime.transports.compression import Compression
from pace.runtime.transports.cuda import CudaTransport
from pace.runtime.transports.device import device_of
from pace.runtime.transports.gloo import GlooTransport
from pace.runtime.transports.transport import Order

__all__ = ["DistributedOptimizer"]


class DistributedOptimizer(WrappedOptimizer):
    """Wraps a torch optimizer: all-reduces its gradients by a schedule, without a barrier.

    Wrap the optimizer after the model is on its device and ``init_process_group`` was called; do not
    wrap the model in DistributedDataParallel. Every rank must do so alike.

    Parameters
    ----------
    optimizer, model
        The user's optimizer, and the module whose parameters it updates.
    schedule
        A schedule or the path of one. Without it and without `service`, a simple plan is computed here.
    service, job
        Where rank 0 asks for the newest schedule of the job for this model.
    credit_bytes
        How many bytes may be in flight at once, instead of what the schedule says.
    backward_passes_per_step
        Gradients of so many backward passes are summed before they are sent.
    op
        "average" divides by the number of ranks, "sum" does not.
    compression
        "fp16" or "bf16" halve what is sent and round what is summed.
    mode
        "overlap": no barrier, updates are applied when a parameter is about to be used. "barrier":
        ``step()`` waits for all gradients. "auto": plain operation, barrier and overlap are timed for a
        few iterations each and all ranks keep the fastest.
    order
        "static": segments go out as planned. "adaptive": as planned, but rank 0 lets others overtake one that
        is late. "priority": rank 0 picks what is needed first among all that is ready. "auto": "static"
        over torch.distributed; over Horovod "adaptive" with a schedule and "priority" without.
    timeout_s
        A peer that does not answer for so long is an error.
    replanning
        When a job with a service profiles itself; by default what PACE_PROFILE_ITERATIONS, PACE_DRIFT_RATIO,
        PACE_DRIFT_ITERATIONS and PACE_REPLAN_INTERVAL_S say.
    process_group
        The ranks that train together; all by default.
    broadcast_parameters
        Whether rank 0's parameters and buffers replace those of other ranks where they differ, once, as in
        DistributedDataParallel; otherwise a difference is an error.

    Raises
    ------
    ScheduleMismatch
        When the schedule was made for another model or world, or the ranks differ.
    InvalidOptions, InvalidUse
        When the arguments or the optimizer do not fit, or weights differ that are not to be overwritten.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        *,
        schedule: Schedule | str | Path | None = None,
        service: str | None = None,
        job: str | None = None,
        api_key: str | None = None,
        credit_bytes: int | None = None,
        backward_passes_per_step: int = 1,
        op: Op = "average",
        compression: Compression = "none",
        mode: Mode = "auto",
        order: Order = "auto",
        timeout_s: float = 300.0,
        replanning: Replanning | None = None,
        process_group: dist.ProcessGroup | None = None,
        broadcast_parameters: bool = True,
    ) -> None:
        device = device_of(model)
        waiting_s = connecting_timeout_s(timeout_s)
        transport = (
            GlooTransport(timeout_s=waiting_s, process_group=process_group)
            if device is None
            else CudaTransport(device, timeout_s=waiting_s, process_group=process_group)
        )

        def prepare() -> tuple[WrapperOptions, PlanSource]:
            options = WrapperOptions(
                mode=mode,
                order=order,
                op=op,
                compression=compression,
                backward_passes_per_step=backward_passes_per_step,
                credit_bytes=credit_bytes,
                timeout_s=timeout_s,
                broadcast_parameters=broadcast_parameters,
            )
            return options, PlanSource(
                transport,
                schedule=schedule,
                service=service,
                job=job,
                credit_bytes=credit_bytes,
                api_key=api_key,
                timeout_s=timeout_s,
                replanning=replanning,
            )

        with released_on_failure(transport):
            super().__init__(optimizer, model, transport=transport, prepare=prepare)
