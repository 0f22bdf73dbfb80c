"""How far the searched order of a batch is from the best one, on random batches.

    .venv/bin/python -m tests.pace_fabric.load.order_search [--batches N] [--seed S]

Batches have up to 7 updates on hosts with links of 10 to 100 Mb/s. The exact program keeps as many updates as
it can, and then minimizes the mean commit time. Exits with 1 if the searched order is over 1 % worse in the
mean, or keeps fewer updates.
"""

import argparse
import random
import statistics
import sys

from pace_fabric.documents.transfer_plan import TransferOptions
from pace_fabric.plan import plan_transfers
from tests.pace_fabric.batches import batch_of, network_of


def main() -> int:
    """Compare both orders batch by batch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=int, default=200, help="number of batches")
    parser.add_argument("--seed", type=int, default=0, help="seed of the batches")
    arguments = parser.parse_args()
    random_ = random.Random(arguments.seed)
    ratios, fewer = [], 0
    for _ in range(arguments.batches):
        names = [f"h{number}" for number in range(random_.randint(2, 7))]
        network = network_of(
            {name: random_.uniform(10, 100) for name in names}, down=random_.choice([50.0, 100.0, 200.0])
        )
        updates = {
            f"u{number}": (random_.uniform(10, 200), name, random_.randint(94, 100))
            for number, name in enumerate(names)
        }
        batch = batch_of(updates, bound=random_.choice([8, 12, 30]))
        searched, exact = (
            plan_transfers(network, batch, TransferOptions(order=order)) for order in ("search", "exact")
        )
        if len(searched.dropped) > len(exact.dropped):
            fewer += 1
        elif exact.predicted.mean_commit_s and len(searched.dropped) == len(exact.dropped):
            ratios.append(searched.predicted.mean_commit_s / exact.predicted.mean_commit_s - 1)
    mean, worst = statistics.mean(ratios), max(ratios)
    print(
        f"{len(ratios)} batches: {mean:+.2%} in the mean, {worst:+.2%} at worst; {fewer} keep fewer updates"
    )
    return 1 if mean > 0.01 or fewer else 0


if __name__ == "__main__":
    sys.exit(main())
