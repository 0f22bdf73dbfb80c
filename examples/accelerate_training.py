"""Trains with Accelerate, with its own DDP or, by one more line, with PACE.

torchrun --nproc-per-node 2 examples/accelerate_training.py
torchrun --nproc-per-node 2 examples/accelerate_training.py --pace
"""

import argparse
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pace.runtime.accelerate


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run one process; return the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pace", action="store_true", help="train with PACE instead of DDP alone")
    options = parser.parse_args(arguments)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(1)
    examples = TensorDataset(torch.randn(256, 16), torch.randint(4, (256,)))
    network: Any = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))
    optimizer: Any = torch.optim.AdamW(network.parameters(), lr=1e-2)
    model, optimizer, batches = accelerator.prepare(network, optimizer, DataLoader(examples, batch_size=16))
    handle = None
    if options.pace:
        handle = pace.runtime.accelerate.attach(accelerator, model, optimizer)

    for _ in range(2):
        for inputs, targets in batches:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    weights: dict[str, Any] = accelerator.unwrap_model(model).state_dict()  # waits for the last updates
    if handle is not None:
        print(f"rank {handle.rank}: {handle.report().rounds} steps under PACE")
        handle.close()
    return weights


if __name__ == "__main__":
    main()
