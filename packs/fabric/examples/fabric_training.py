"""Trains one model over a fabric: workers do not wait for one another, or average models as in DiLoCo.

pace fabric scheduler --bind 127.0.0.1:7080 --delay-bound 8
python packs/fabric/examples/fabric_training.py --first model.npy            the first model, for the server
pace fabric serve --name server --scheduler 127.0.0.1:7080 --model model.npy --bind 127.0.0.1:7081
pace fabric daemon --name h0 --scheduler 127.0.0.1:7080 --bind 127.0.0.1:7082      on each host of workers
python packs/fabric/examples/fabric_training.py --daemon 127.0.0.1:7082 --rank 0      on each worker
python packs/fabric/examples/fabric_training.py --daemon 127.0.0.1:7082 --rank 0 --diloco --workers 2
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

from pace.wire.addresses import parse_address, read_token
from pace_fabric.runtime.client import FabricClient
from pace_fabric.runtime.torch_loop import AsynchronousWorker, row_of

LOCAL_STEPS = 5


def build_model() -> nn.Module:
    """Return the same first model everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def outer_optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return DiLoCo's outer optimizer."""
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def train_locally(model: nn.Module, generator: torch.Generator) -> float:
    """Take a few steps on data of this worker; return the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = torch.tensor(0.0)
    for _ in range(LOCAL_STEPS):
        inputs = torch.randn(32, 8, generator=generator)
        loss = mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True).sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    """Run one worker."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    model = build_model()
    if arguments.first:
        np.save(arguments.first, row_of(model))
        return
    generator = torch.Generator().manual_seed(arguments.rank)
    daemon = parse_address(arguments.daemon, "the daemon")
    token = read_token(None, "PACE_FABRIC_TOKEN")
    with FabricClient(daemon, worker=f"worker{arguments.rank}", token=token) as fabric:
        if arguments.diloco:
            from pace_sync.diloco import OuterStep  # of another pack

            round_ = OuterStep(model, outer_optimizer, fabric, members=arguments.workers)
            for _ in range(arguments.rounds):
                loss = train_locally(model, generator)
                round_.step(weight=float(LOCAL_STEPS))
        else:
            worker = AsynchronousWorker(model, fabric)
            for _ in range(arguments.rounds):
                worker.pull()
                loss = train_locally(model, generator)
                worker.push()
            ends = worker.finish()
            print(f"{sum(end.outcome == 'committed' for end in ends)} of {len(ends)} updates committed")
        print(f"loss {loss:.4f}, parameters {float(np.abs(row_of(model)).sum()):.6f}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--daemon", default="127.0.0.1:7082", help="HOST:PORT of this host's daemon (default: %(default)s)"
    )
    parser.add_argument(
        "--rank", type=int, default=0, help="number of this worker, from 0 (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="number of workers in every outer step (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=10, help="number of outer steps (default: %(default)s)")
    parser.add_argument(
        "--diloco", action="store_true", help="average the workers' models in every round (DiLoCo; pack sync)"
    )
    parser.add_argument("--first", help="write the initial model to this file and exit")
    return parser.parse_args()


if __name__ == "__main__":
    main()
