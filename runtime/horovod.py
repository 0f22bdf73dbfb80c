"""DistributedOptimizer for jobs that use Horovod, and the ``init`` that prepares Horovod for it."""

import os
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

from pace.errors import InvalidOptions, InvalidUse
from pace.runtime.compression import Compression
from pace.runtime.fetch import PlanSource
from pace.runtime.hvd import HorovodTransport
from pace.runtime.optimizer import Mode, Op, WrappedOptimizer
from pace.runtime.transport import Order
from pace.schedule import Schedule

__all__ = ["DistributedOptimizer", "init"]

# Horovod would fuse segments that wait together into one operation, and undo the schedule.
_SETTINGS = {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_DISABLE_GROUP_FUSION": "1"}


def init(*arguments: Any, **options: Any) -> None:
    """Call ``hvd.init`` with the settings that the runtime needs; use it instead of ``hvd.init``.

    Raises
    ------
    InvalidUse
        When Horovod is already initialised with other settings: they are read only once.
    """
    if hvd.is_initialized():
        _refuse_wrong_settings()
        return
    for name, value in _SETTINGS.items():
        os.environ[name] = value
    hvd.init(*arguments, **options)


def _refuse_wrong_settings() -> None:
    wrong = [f"{name}={value}" for name, value in _SETTINGS.items() if os.environ.get(name) != value]
    if wrong:
        raise InvalidUse(
            f"Horovod was initialised without {' and '.join(wrong)}, so it would fuse and reorder segments:"
            " call pace.runtime.horovod.init() instead of hvd.init()"
        )


class DistributedOptimizer(WrappedOptimizer):
    """Wraps a torch optimizer: all-reduces its gradients over Horovod by a schedule, without a barrier.

    Takes Horovod's own argument names, so that ``hvd.DistributedOptimizer(optimizer, ...)`` becomes
    ``pace.runtime.horovod.DistributedOptimizer(optimizer, ..., model=model)``. See
    ``pace.runtime.torch.DistributedOptimizer`` for the parameters that are not listed here.

    Parameters
    ----------
    named_parameters
        Accepted for Horovod's sake; names come from the model.
    op
        ``hvd.Average`` or ``hvd.Sum``, or "average" or "sum".
    compression
        ``hvd.Compression.none`` or ``.fp16``, or "none", "fp16" or "bf16".
    sparse_as_dense
        Accepted for Horovod's sake; sparse gradients are always sent dense.

    Raises
    ------
    InvalidUse
        When Horovod was not initialised by ``pace.runtime.horovod.init``.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Any = None,  # noqa: ARG002  # Horovod's signature
        *,
        model: nn.Module,
        schedule: Schedule | str | Path | None = None,
        service: str | None = None,
        job: str | None = None,
        api_key: str | None = None,
        credit_bytes: int | None = None,
        backward_passes_per_step: int = 1,
        op: Any = "average",
        sparse_as_dense: bool = True,  # noqa: ARG002  # Horovod's signature
        compression: Any = "none",
        mode: Mode = "auto",
        order: Order = "auto",
        timeout_s: float = 300.0,
    ) -> None:
        if not hvd.is_initialized():
            raise InvalidUse("call pace.runtime.horovod.init() before DistributedOptimizer(...)")
        _refuse_wrong_settings()
        compression = _compression(compression)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter.dtype is torch.bfloat16:
                raise InvalidOptions(f"{name} is bfloat16, which Horovod cannot sum")
            if parameter.requires_grad and parameter.is_cuda and not hvd.nccl_built():
                raise InvalidOptions(f"{name} is on a GPU and this Horovod was built without NCCL")
        transport = HorovodTransport()
        super().__init__(
            optimizer,
            model,
            transport=transport,
            source=PlanSource(
                transport,
                schedule=schedule,
                service=service,
                job=job,
                credit_bytes=credit_bytes,
                api_key=api_key,
            ),
            mode=mode,
            order=order,
            op=_op(op),
            compression=compression,
            backward_passes_per_step=backward_passes_per_step,
            timeout_s=timeout_s,
        )


def _op(op: Any) -> Op:
    if op in ("average", hvd.Average):
        return "average"
    if op in ("sum", hvd.Sum):
        return "sum"
    raise InvalidOptions(f"op is {op!r}; hvd.Average and hvd.Sum are supported")


def _compression(compression: Any) -> Compression:
    if compression is hvd.Compression.none:
        return "none"
    if compression is hvd.Compression.fp16:
        return "fp16"
    if compression == "bf16":
        raise InvalidOptions("compression is 'bf16': Horovod cannot sum bfloat16; use fp16")
    chosen: Compression = compression  # any other value is refused where it is used
    return chosen
