"""Predicts how many rollout workers keep a trainer busy, and how stale their samples are.

Rollout workers pull weights from server 0, generate, and push samples to server 1, the trainer. Its link
carries as many bytes of samples per second as it trains on.
"""

import numpy as np

from pace import StepsDocument
from pace_servers import Fleet, PredictionOptions, predict

WEIGHTS_BYTES, SAMPLES_BYTES = 16_000_000_000, 64_000_000
LINK_BYTES_PER_S, TRAINED_BYTES_PER_S = 12e9, 24e6

seconds = np.random.default_rng(0).lognormal(mean=3.0, sigma=0.6, size=60)  # of a rollout, median 20 s
rollout = StepsDocument.model_validate(
    {
        "name": "rollouts",
        "servers": 2,
        "ops": [
            {"name": "pull/weights", "resource": "downlink", "server": 0, "size_bytes": WEIGHTS_BYTES},
            {"name": "generate", "resource": "worker", "deps": ["pull/weights"]},
            {
                "name": "push/samples",
                "resource": "uplink",
                "server": 1,
                "size_bytes": SAMPLES_BYTES,
                "deps": ["generate"],
            },
        ],
        "steps": [{"duration_s": [0, float(each), 0]} for each in seconds],
        "link": {"bytes_per_s": LINK_BYTES_PER_S},
    }
)
for every in (1, 4):  # pull before every rollout, or before every fourth
    fleet = Fleet(pull_every=every, server_bytes_per_s=(LINK_BYTES_PER_S, TRAINED_BYTES_PER_S))
    options = PredictionOptions(
        workers=(2, 4, 8, 16, 32), fleet=fleet, steps=200, skip=40, seeds=3, advice=False
    )
    answer = predict(rollout, options)
    at_16 = answer.points[3]
    print(f"pull every {every}: knee at {answer.curves[0].knee_workers} workers")
    print(f"  16 workers: {at_16.mean_staleness:.0f} updates stale, bottleneck {at_16.bottleneck}")
