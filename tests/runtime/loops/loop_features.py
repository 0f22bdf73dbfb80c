"""Manners of training that loops have in common, for any model with any optimizer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tests.runtime.loops.loop_run import Run
from tests.runtime.models import MODELS, batches
from tests.runtime.schedules import shuffled_schedule
from tests.runtime.training import OPTIMIZERS, backward, trainable

Manner = Callable[["Training"], None]


@dataclass(frozen=True, kw_only=True)
class Training:
    """A model and its optimizer in a run."""

    run: Run
    model: nn.Module
    optimizer: Any
    batches: list[Any]

    def compute(self, number: int, factor: Any = 1.0) -> None:
        """Run a backward pass on one of this rank's batches."""
        backward(self.model(*self.batches[number % len(self.batches)]) * factor)

    def average(self) -> None:
        """See `Run`."""
        self.run.average(self.model)

    def clip(self) -> None:
        """Clip gradients, and note their norm."""
        self.run.see(nn.utils.clip_grad_norm_(self.model.parameters(), 0.05))


def tails(training: Training) -> None:
    """Two backward passes a step, but one at the end of each epoch; clipped."""
    for step in range(training.run.steps):
        training.optimizer.zero_grad()
        for number in range(1 if step % 3 == 2 else 2):
            training.compute(2 * step + number)
        training.average()
        training.clip()
        training.optimizer.step()


def scaled(training: Training) -> None:
    """A loss scaler, sometimes with clipping; the last rank overflows in the third step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    for step in range(training.run.steps):
        training.optimizer.zero_grad()
        overflows = step == 2 and training.run.rank == training.run.size - 1
        scaler.scale(torch.ones(()))
        training.compute(step, scaler.get_scale() * (float("inf") if overflows else 1.0))
        training.average()
        if step % 2:
            scaler.unscale_(training.optimizer)
            training.clip()
        scaler.step(training.optimizer)
        scaler.update()
        training.run.see(scaler.get_scale())


def frozen(training: Training) -> None:
    """Every second parameter is frozen in mid-training, and thaws again."""
    chosen = trainable(training.model)[::2]
    for step in range(training.run.steps):
        for parameter in chosen:
            parameter.requires_grad_(step not in (2, 3))
        training.optimizer.zero_grad()
        training.compute(step)
        training.average()
        training.optimizer.step()


def now_and_then(training: Training) -> None:
    """Some steps have no backward pass on rank 0, and some on no rank; gradients are dropped by hand."""
    for step in range(training.run.steps):
        for parameter in training.model.parameters():
            parameter.grad = None
        if step % 4 != 3 and (step % 4 != 1 or training.run.rank):
            training.compute(step)
        training.average()
        training.optimizer.step()


def by_module(training: Training) -> None:
    """``model.zero_grad()``, and every gradient read before and after the step."""
    for step in range(training.run.steps):
        training.model.zero_grad(set_to_none=step % 2 == 0)
        training.compute(step)
        training.average()
        for _ in range(2):
            training.run.see([parameter.grad for parameter in training.model.parameters()])
            training.optimizer.step()


def accumulated(training: Training) -> None:
    """Gradients that no_sync keeps, then one more pass; zeroes come last."""
    for step in range(training.run.steps):
        with training.run.no_sync(training.optimizer):
            training.compute(2 * step)
        training.compute(2 * step + 1)
        training.average()
        training.optimizer.step()
        training.optimizer.zero_grad(set_to_none=step % 2 == 0)


MANNERS: tuple[Manner, ...] = (tails, scaled, frozen, now_and_then, by_module, accumulated)


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A manner of training a model with an optimizer; a loop that `Run` can run.

    Attributes
    ----------
    plan
        The seed of a shuffled schedule; None for the plan that the runtime makes.
    """

    manner: Manner
    model: str
    optimizer: str
    plan: int | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.manner.__name__} {self.model} {self.optimizer} {self.plan} {self.options}"

    def __call__(self, run: Run) -> None:
        """Train."""
        model = run.build(MODELS[self.model][0])
        options = dict(self.options)
        if self.manner is tails:
            options["backward_passes_per_step"] = 2
        if self.plan is not None:
            options["schedule"] = shuffled_schedule(model, run.size, self.plan)
        optimizer = run.wrap(OPTIMIZERS[self.optimizer](trainable(model)), model, **options)
        share = batches(self.model, 2 * run.steps, run.rank, double=True)
        self.manner(Training(run=run, model=model, optimizer=optimizer, batches=share))
