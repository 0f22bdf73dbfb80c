"""One ``fit`` of Lightning's Trainer, under ``strategy="ddp"`` or ``strategy="pace"``.

The Trainer runs in a thread of its own and trains as long as its dataset has examples. The dataset hands them
out as they are asked for: between two requests the Trainer waits for its next batch.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from pace.runtime.ddp import AttachedOptimizer
from pace.runtime.lightning import PaceStrategy

# More than any record takes.
_LONGEST_ITERATIONS = 100_000


class ReplayModule(LightningModule):
    """A replay with its optimizer; parameters have the names that they have in the replay."""

    def __init__(self, replay: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.stages = replay.stages
        self._run = replay.forward  # no submodule: names of parameters would begin with it
        self._optimizer = optimizer
        self.starts: list[float] = []

    def training_step(self, scale: torch.Tensor, _number: int) -> torch.Tensor:
        """Return the loss."""
        loss: torch.Tensor = self._run(scale)
        return loss

    def on_before_backward(self, _loss: torch.Tensor) -> None:
        """Note when the window begins."""
        self.starts.append(time.perf_counter())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the one optimizer."""
        return self._optimizer


class _OnDemand(Dataset[torch.Tensor]):
    """Examples that are made when they are asked for, the same for all ranks."""

    def __init__(self, workers: int, scales: Iterator[float]) -> None:
        self._workers = workers
        self._scales = scales

    def __len__(self) -> int:
        return _LONGEST_ITERATIONS * self._workers

    def __getitem__(self, _number: int) -> torch.Tensor:
        return torch.tensor(next(self._scales))


class LightningLoop:
    """See ``loop.FrameworkLoop``.

    Parameters
    ----------
    options
        PACE's, as for ``pace.runtime.ddp.attach``; None for ``strategy="ddp"``.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        workers: int,
        options: dict[str, Any] | None,
    ) -> None:
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        self._asked: SimpleQueue[Sequence[float]] = SimpleQueue()
        self._trained: SimpleQueue[BaseException | None] = SimpleQueue()
        self._module = ReplayModule(model, optimizer)
        self._trainer = Trainer(
            accelerator="cpu",
            devices=1,
            num_nodes=workers,
            strategy="ddp" if options is None else PaceStrategy(**options),
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        self._loader = DataLoader(_OnDemand(workers, self._inputs()))
        threading.Thread(target=self._fit, name="fit", daemon=True).start()
        self._wait()  # for its first batch: all is set up by then
        strategy: Any = self._trainer.strategy
        self.parallel: DistributedDataParallel = strategy.model
        self.pace: AttachedOptimizer | None = strategy.pace if options is not None else None

    def _fit(self) -> None:
        try:
            self._trainer.fit(self._module, self._loader)
            raise RuntimeError("the Trainer stopped by itself")
        except BaseException as error:
            self._trained.put(error)

    def _inputs(self) -> Iterator[float]:
        while True:
            self._trained.put(None)
            yield from self._asked.get()

    def _wait(self) -> None:
        error = self._trained.get()
        if error is not None:
            raise error

    def train(self, scales: Sequence[float]) -> list[float]:
        """Let the Trainer go on for as many batches."""
        self._module.starts = []
        self._asked.put(scales)
        self._wait()
        return self._module.starts
