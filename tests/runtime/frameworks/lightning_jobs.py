"""What people do with a Lightning Trainer, under its own DDP and under PACE."""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from pace.runtime.options import Mode
from tests.runtime.frameworks.programs import environment


def fit(rank: int, strategy: Any, folder: Path | None = None, resume: bool = False, **options: Any) -> Any:
    """Train a module; return it with its trainer, and what it saw of gradients and of an evaluation."""
    from lightning.pytorch import LightningModule, Trainer, seed_everything
    from lightning.pytorch.callbacks import EMAWeightAveraging, StochasticWeightAveraging

    manual = options.pop("manual", False)
    if options.pop("averaged", False):
        options["callbacks"] = [EMAWeightAveraging(decay=0.9), StochasticWeightAveraging(0.01, 1)]
    optimizers = options.pop("optimizers", 1)

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
            self.automatic_optimization = not manual
            self.seen: list[float] = []

        def training_step(self, batch: Any, _number: int) -> torch.Tensor | None:
            loss: torch.Tensor = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
            if not manual:
                return loss
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, gradient_clip_val=0.1)
            optimizer.step()
            return None

        def validation_step(self, batch: Any, _number: int) -> None:
            self.seen.append(float(self.layers(batch[0]).sum()))

        def on_before_optimizer_step(self, _optimizer: Any) -> None:
            self.seen.append(sum(float(p.grad.norm()) for p in self.parameters() if p.grad is not None))

        def configure_optimizers(self) -> Any:
            if optimizers > 1:
                ends = (self.layers[0], self.layers[3])
                return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in ends]
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]

    environment(rank)
    seed_everything(1, verbose=False)
    loader = DataLoader(TensorDataset(torch.randn(96, 8), torch.randint(3, (96,))), batch_size=8)
    module = Module()
    options = {"max_epochs": 2, "logger": False, "enable_checkpointing": False} | options
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )
    trainer.fit(module, loader, loader, ckpt_path=str(folder / "last.ckpt") if resume and folder else None)
    return trainer, module


def numbers(module: Any) -> list[Any]:
    """Return the weights and all that a module saw."""
    return [*(value.numpy().tolist() for value in module.state_dict().values()), *module.seen]


VARIANTS: dict[str, dict[str, Any]] = {
    "accumulation and a clipped norm": {"accumulate_grad_batches": 3, "gradient_clip_val": 0.2},
    "clipped values": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "bfloat16": {"precision": "bf16-mixed"},
    "float64": {"precision": "64-true"},
    "manual optimization": {"manual": True},
    "averaged weights": {"averaged": True, "max_epochs": 4},
}


def variants(rank: int) -> dict[str, tuple[list[Any], list[Any]]]:
    """Run all of them, under DDP and under PACE with updates that overlap the next forward pass."""
    from pace.runtime.lightning import PaceStrategy, Plan

    found = {}
    for name, options in VARIANTS.items():
        runs = []
        for strategy in ("ddp", PaceStrategy(mode="overlap", plan=Plan(order="static"))):
            with steps_counted() as count:
                trainer, module = fit(rank, strategy, **options)
            assert count[0] == (0 if strategy == "ddp" else trainer.global_step)
            runs.append(numbers(module))
        found[name] = (runs[0], runs[1])
    return found


def resumed(rank: int, folder: str) -> list[list[Any]]:
    """Three epochs at once; one, saved, and two more from there; under both, and from one to the other."""
    import pace.runtime.lightning  # noqa: F401  # registers "pace"

    found = []
    for first, then in (("ddp", "ddp"), ("pace", "pace"), ("pace", "ddp"), ("ddp", "pace")):
        place = Path(folder, f"{first}-{then}")
        trainer, _ = fit(rank, first, place, max_epochs=1, enable_checkpointing=True)
        trainer.save_checkpoint(place / "last.ckpt")
        _, module = fit(rank, then, place, resume=True, max_epochs=3)
        found.append(numbers(module))
    return found


def thawed(rank: int) -> dict[str, tuple[list[Any], list[Any]]]:
    """Thaw a layer after an epoch; return the weights, and what an optimizer makes of averaged gradients."""
    from lightning.pytorch import LightningModule, Trainer, seed_everything
    from lightning.pytorch.callbacks import BaseFinetuning

    from pace.runtime.lightning import PaceStrategy

    class Thaw(BaseFinetuning):
        def freeze_before_training(self, module: Any) -> None:
            self.freeze(module.layers[0])

        def finetune_function(self, module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(module.layers[0], optimizer, lr=0.02)

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

        def training_step(self, batch: Any, _number: int) -> torch.Tensor:
            loss: torch.Tensor = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.01)

    environment(rank)
    modes: tuple[Mode, ...] = ("overlap", "barrier")
    found: dict[str, Any] = {}
    for mode in modes:
        seed_everything(1, verbose=False)
        examples = TensorDataset(torch.randn(32, 8), torch.randint(3, (32,)))
        own: DistributedSampler[Any] = DistributedSampler(examples, 2, rank, shuffle=False)
        module = Module()
        plain = copy.deepcopy(module.layers)
        Trainer(
            accelerator="cpu",
            devices=2,
            strategy=PaceStrategy(mode=mode),
            callbacks=[Thaw()],
            max_epochs=2,
            use_distributed_sampler=False,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(module, DataLoader(examples, batch_size=4, sampler=own))

        optimizer = torch.optim.AdamW(plain[2].parameters(), lr=0.01)
        for epoch in range(2):
            if epoch == 1:
                optimizer.add_param_group({"params": list(plain[0].parameters()), "lr": 0.02})
            for first in range(0, 32, 8):
                optimizer.zero_grad()
                for each in range(2):  # ranks take turns in the data set
                    inputs, targets = examples[first + each : first + 8 : 2]
                    loss = nn.functional.cross_entropy(plain(inputs), targets) / 2
                    loss.backward()  # type: ignore[no-untyped-call]  # in torch
                if epoch == 0:
                    plain[0].zero_grad()
                optimizer.step()
        found[mode] = (
            [value.tolist() for value in module.layers.state_dict().values()],
            [value.tolist() for value in plain.state_dict().values()],
        )
    return found


def several(rank: int) -> str:
    """Return what is said of a module with two optimizers; the same process trains on afterwards."""
    import pace.runtime.lightning  # noqa: F401  # registers "pace"
    from pace.errors import InvalidUse

    said = ""
    try:
        fit(rank, "pace", manual=True, optimizers=2)
    except InvalidUse as error:
        said = str(error)
    fit(rank, "pace", max_epochs=1)
    return said


def misused(rank: int) -> list[str]:
    """Return what is said of a wrapped optimizer under Lightning's DDP, and of an unknown option."""
    from lightning.pytorch import LightningModule, Trainer

    from pace.errors import PaceError
    from pace.runtime.lightning import PaceStrategy
    from pace.runtime.torch import DistributedOptimizer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def training_step(self, batch: Any, _number: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return DistributedOptimizer(torch.optim.SGD(self.parameters(), lr=0.1), self)

    environment(rank)
    loader = DataLoader(TensorDataset(torch.ones(16, 4), torch.zeros(16, dtype=torch.int64)), batch_size=4)
    quiet: Any = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    said = []
    for run in (
        lambda: Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, **quiet).fit(
            Module(), loader
        ),
        lambda: PaceStrategy(max_grad_norm=1.0),
    ):
        try:
            run()
        except PaceError as error:
            said.append(str(error))
    return said


def logged(rank: int, folder: str) -> dict[str, float]:
    """Return what the Trainer's own TensorBoard logger was given, on rank 0."""
    from lightning.pytorch.loggers import TensorBoardLogger

    from pace.runtime.lightning import PaceReport

    logger = TensorBoardLogger(folder, name="run", version=0)
    trainer, _ = fit(rank, "pace", logger=logger, callbacks=[PaceReport(every_n_steps=2)], max_epochs=1)
    assert trainer.global_step == 6
    logger.experiment.flush()
    return read_events(os.path.join(folder, "run", "version_0")) if rank == 0 else {}


def read_events(folder: str) -> dict[str, float]:
    """Return the last value of every scalar that TensorBoard finds in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder)
    events.Reload()
    return {tag: events.Scalars(tag)[-1].value for tag in events.Tags()["scalars"]}


class steps_counted:  # noqa: N801  # used as a context manager
    """Counts the steps that PACE takes."""

    def __enter__(self) -> list[int]:
        from pace.runtime.ddp import AttachedOptimizer

        count = [0]
        self._step: Callable[..., Any] = AttachedOptimizer.step
        before = self._step

        def step(*arguments: Any, **named: Any) -> Any:
            count[0] += 1
            return before(*arguments, **named)

        AttachedOptimizer.step = step  # type: ignore[method-assign]
        return count

    def __exit__(self, *_raised: object) -> None:
        from pace.runtime.ddp import AttachedOptimizer

        AttachedOptimizer.step = self._step  # type: ignore[method-assign]
