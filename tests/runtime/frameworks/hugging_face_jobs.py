"""What people do with Accelerate and with the Transformers Trainer, with and without PACE."""

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.runtime.frameworks.lightning_jobs import steps_counted
from tests.runtime.frameworks.programs import environment


def accelerated(rank: int, folder: str, attach: bool) -> list[Any]:
    """Train in bfloat16 with a schedule, save half-way, load and train on; return what was seen."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import set_seed

    import pace.runtime.accelerate

    environment(rank)
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=3)
    set_seed(1)
    loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(3, (64,))), batch_size=4)
    network = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    plain = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(plain, 2)
    model, optimizer, loader, schedule = accelerator.prepare(network, plain, loader, schedule)
    handle = None
    if attach:  # no trial of modes: updates overlap the next forward pass
        handle = pace.runtime.accelerate.attach(
            accelerator, model, optimizer, mode="overlap", plan=pace.runtime.accelerate.Plan(order="static")
        )
    seen: list[Any] = []
    place = str(Path(folder, f"attached-{attach}"))
    for epoch in range(4):
        if epoch == 2:
            accelerator.save_state(place)
        if epoch == 3:
            accelerator.load_state(place)
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    seen.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.5)))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        seen.append(optimizer.param_groups[0]["lr"])
    seen += [value.tolist() for value in accelerator.unwrap_model(model).state_dict().values()]
    if handle is not None:
        assert handle.report().rounds == 4 * 3  # 8 batches an epoch, 3 a step, the last step of 2
        handle.close()
    AcceleratorState._reset_state(reset_partial_state=True)
    return seen


def refusals(rank: int) -> list[str]:
    """Return what is said of arguments that ``prepare()`` did not return, or returned around others."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    import pace.runtime.accelerate
    import pace.runtime.ddp
    import pace.runtime.torch
    from pace.errors import PaceError

    environment(rank)
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator: Any = Accelerator(cpu=True)
    network = nn.Linear(4, 4)
    plain = torch.optim.SGD(network.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(network, plain)
    attach = pace.runtime.accelerate.attach
    said = []
    for call in (
        lambda: attach(accelerator, model, plain),
        lambda: attach(accelerator, network, optimizer),
        lambda: attach(model, optimizer, accelerator),
        lambda: pace.runtime.ddp.attach(model, optimizer),
        lambda: pace.runtime.torch.DistributedOptimizer(optimizer, network),
        lambda: attach(
            accelerator, model, optimizer, communication=pace.runtime.torch.AllReduce(sharding="auto")
        ),
    ):
        try:
            call()
        except PaceError as error:
            said.append(str(error))
    AcceleratorState._reset_state(reset_partial_state=True)
    return said


def both(rank: int, folder: str) -> tuple[list[Any], list[Any]]:
    """Run with Accelerate's own DDP and with PACE."""
    return accelerated(rank, folder, False), accelerated(rank, folder, True)


def resumed(rank: int, folder: str) -> list[list[Any]]:
    """Train at once, and on from a checkpoint half-way; by the Trainer alone and under PACE."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

    from pace.runtime.transformers import PaceMixin, Plan

    class PaceTrainer(PaceMixin, Trainer):
        def __init__(self, **options: Any) -> None:
            super().__init__(mode="overlap", plan=Plan(order="static"), **options)

    def train(kind: Any, place: str, epochs: int, resume: bool = False) -> Any:
        environment(rank)
        set_seed(1)
        examples = [{"input_ids": row, "labels": row} for row in torch.randint(50, (32, 8))]
        config = GPT2Config(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=2)
        trainer = kind(
            model=GPT2LMHeadModel(config),
            args=TrainingArguments(
                place,
                use_cpu=True,
                per_device_train_batch_size=2,
                num_train_epochs=epochs,
                max_steps=16,
                lr_scheduler_type="constant",
                save_strategy="steps",
                save_steps=8,
                eval_strategy="epoch",
                logging_steps=4,
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=examples,
            eval_dataset=examples[:8],
        )
        trainer.train(resume_from_checkpoint=f"{place}/checkpoint-8" if resume else None)
        return trainer

    runs = []
    for kind in (Trainer, PaceTrainer):
        place = str(Path(folder, kind.__name__))
        for resume in (False, True):
            with steps_counted() as count:
                trainer = train(kind, place, 2, resume)
            assert count[0] == (0 if kind is Trainer else 8 if resume else 16)
            logged = [each["eval_loss"] for each in trainer.state.log_history if "eval_loss" in each]
            weights = [value.tolist() for value in trainer.model.state_dict().values()]
            runs.append([*weights, *logged[-1:]])
        if kind is PaceTrainer:
            losses = [each for each in trainer.state.log_history if "loss" in each]
            assert losses[-1]["pace/rounds"] >= 7
    return runs


def failed(rank: int, folder: str) -> list[list[Any]]:
    """Train until a callback raises, then anew with another Trainer; by the Trainer alone and under PACE."""
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
        set_seed,
    )

    from pace.runtime.transformers import PaceMixin

    class PaceTrainer(PaceMixin, Trainer):
        def __init__(self, **options: Any) -> None:
            super().__init__(mode="overlap", **options)

    class Fails(TrainerCallback):
        def on_step_end(self, *_arguments: Any, **_named: Any) -> None:
            raise ValueError("interrupted")

    environment(rank)
    runs = []
    for kind in (Trainer, PaceTrainer):
        set_seed(1)
        examples = [{"input_ids": row, "labels": row} for row in torch.randint(50, (16, 8))]
        model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=2))
        settings: Any = {"use_cpu": True, "max_steps": 3, "save_strategy": "no", "report_to": []}
        attempts: list[list[TrainerCallback]] = [[Fails()], []]
        for callbacks in attempts:
            arguments = TrainingArguments(folder, **settings)
            trainer: Any = kind(model=model, args=arguments, train_dataset=examples, callbacks=callbacks)
            with contextlib.suppress(ValueError):
                trainer.train()
        runs.append([value.tolist() for value in model.state_dict().values()])
    return runs
