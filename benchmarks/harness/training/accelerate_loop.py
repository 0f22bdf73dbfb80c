"""The loop of Accelerate's documentation, under its own DDP or with PACE attached after ``prepare()``."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import pace.runtime.accelerate
from pace.runtime.ddp import AttachedOptimizer


class AccelerateLoop:
    """See ``loop.FrameworkLoop``.

    Parameters
    ----------
    options
        PACE's, as for ``pace.runtime.ddp.attach``; None for Accelerate's own DDP.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        workers: int,
        options: dict[str, Any] | None,
    ) -> None:
        self._workers = workers
        self._accelerator = Accelerator(cpu=True)
        assert self._accelerator.num_processes == workers
        self.parallel: DistributedDataParallel
        self.parallel, self._optimizer = self._accelerator.prepare(model, optimizer)
        self.pace: AttachedOptimizer | None = None
        if options is not None:
            self.pace = pace.runtime.accelerate.attach(
                self._accelerator, self.parallel, self._optimizer, **options
            )

    def train(self, scales: Sequence[float]) -> list[float]:
        """Train an iteration on each of these inputs, an epoch of a loader that deals them out to ranks."""
        dealt: Any = [torch.tensor(scale) for scale in scales for _ in range(self._workers)]
        loader = self._accelerator.prepare_data_loader(DataLoader(dealt))
        accelerator, model, optimizer = self._accelerator, self.parallel, self._optimizer
        starts = []
        for scale in loader:
            optimizer.zero_grad()
            loss = model(scale)
            starts.append(time.perf_counter())
            accelerator.backward(loss)
            optimizer.step()
        self._accelerator._dataloaders.remove(loader)  # it would keep every epoch's
        return starts
