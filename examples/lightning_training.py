"""Trains with Lightning on two processes, with its own DDP or with PACE; only the strategy differs.

python examples/lightning_training.py --strategy ddp
python examples/lightning_training.py --strategy pace
"""

import argparse
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pace.runtime.lightning  # noqa: F401  # registers "pace"


class Classifier(LightningModule):
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))

    def training_step(self, batch: Any, _number: int) -> torch.Tensor:
        """One batch's loss."""
        loss: torch.Tensor = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimizer for all."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run one process; return the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--strategy",
        default="pace",
        choices=("ddp", "pace"),
        help="strategy of the Trainer (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    seed_everything(1, verbose=False)
    examples = TensorDataset(torch.randn(256, 16), torch.randint(4, (256,)))
    module = Classifier()
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=options.strategy,
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, DataLoader(examples, batch_size=16))
    print(f"rank {trainer.global_rank}: {trainer.global_step} steps, {options.strategy}")
    return module.state_dict()


if __name__ == "__main__":
    main()
