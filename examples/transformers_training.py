"""Trains with the Hugging Face Trainer, with its own DDP or with PACE.

torchrun --nproc-per-node 2 examples/transformers_training.py
torchrun --nproc-per-node 2 examples/transformers_training.py --pace
"""

import argparse
import tempfile
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from pace.runtime.transformers import PaceMixin


class PaceTrainer(PaceMixin, Trainer):
    """The Trainer with gradients summed by PACE."""


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run one process; return the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pace", action="store_true", help="train with PACE instead of DDP alone")
    options = parser.parse_args(arguments)
    set_seed(1)
    tokens = torch.randint(50, (48, 12))
    examples = [{"input_ids": row, "labels": row} for row in tokens]
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    with tempfile.TemporaryDirectory() as folder:
        trainer = (PaceTrainer if options.pace else Trainer)(
            model=GPT2LMHeadModel(config),
            args=TrainingArguments(
                folder,
                use_cpu=True,
                per_device_train_batch_size=4,
                gradient_accumulation_steps=2,
                num_train_epochs=10,
                max_grad_norm=1.0,
                logging_steps=10,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=examples,
        )
        trainer.train()
        trained: Any = trainer.model
        weights: dict[str, Any] = trained.state_dict()
        return weights


if __name__ == "__main__":
    main()
