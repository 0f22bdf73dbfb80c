"""Predicts how many rounds an hour a quorum of federated clients allows, and how much work it drops.

Clients download a model, train for very different times, and upload over links of their own. A round ends
when a quorum has answered. Later answers are dropped, and those clients start again with the new model.
"""

import numpy as np

from pace import StepsDocument
from pace_servers import Fleet
from pace_servers.throughput import simulate_steps

CLIENTS = 20

client = StepsDocument.model_validate(
    {
        "name": "client",
        "ops": [
            {"name": "pull/model", "resource": "downlink", "size_bytes": 50_000_000},
            {"name": "train", "resource": "worker", "deps": ["pull/model"]},
            {"name": "push/model", "resource": "uplink", "size_bytes": 50_000_000, "deps": ["train"]},
        ],
        "steps": [{"duration_s": [0, seconds, 0]} for seconds in (50.0, 60.0, 70.0)],
        "link": {"bytes_per_s": 1.25e9},
    }
)
speed = tuple(np.geomspace(1.0, 0.1, CLIENTS).tolist())  # the slowest takes ten times as long
for quorum in (20, 16, 12):
    fleet = Fleet(
        speed=speed,
        upload_bytes_per_s=(5e6, 2.5e6, 1.25e6),
        download_bytes_per_s=(12.5e6,),
        barrier="quorum",
        quorum=quorum,
        late="drop",
    )
    run = simulate_steps(client, CLIENTS, fleet=fleet, steps=60, skip=10)
    rounds = 3600 * run.steps_per_s / quorum
    print(f"quorum of {quorum}: {rounds:.1f} rounds an hour, {1 - run.kept.mean():.0%} dropped")
