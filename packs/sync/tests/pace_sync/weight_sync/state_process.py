"""The two ends of weight synchronization as processes that can be killed.

``python state_process.py receive FILE`` prints its address and then each version that it has, and writes the
last one to FILE. ``python state_process.py send MEGABYTES ADDRESS...`` sends version 1, and is killed in the
middle of version 2. With ``send-deltas``, version 2 is a delta in which half of the bytes changed.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from pace_fabric.runtime.weight_sync import WeightSender
from pace_sync.documents.delta_sync import DeltaPlan
from pace_sync.weight_sync import StateReceiver, StateSender

SEED = 7
WITHIN_S = 200.0


def state_of(version: int, megabytes: int) -> dict[str, torch.Tensor]:
    """Return a state dict of this version: bfloat16 and float32, one element, none, and a view."""
    random = torch.Generator().manual_seed(SEED + version)
    rows = megabytes * 125
    return {
        "embed": torch.randn(rows, 1000, generator=random).to(torch.bfloat16),
        "head": torch.randn(rows * 3 // 2, 1000, generator=random).t(),
        "scale": torch.tensor(version, dtype=torch.float32),
        "none": torch.empty(0, 5, dtype=torch.int8),
        "mask": torch.rand(100, generator=random) > 0.5,
    }


def delta_plan(rule: str, *, every: int | None = None) -> DeltaPlan:
    """Return a plan by this rule, with blocks of 4 KiB."""
    fields: dict[str, Any] = {"rule": rule, "anchor_every": every, "choices": ()}
    times = dict.fromkeys(("anchor_s", "delta_s", "mean_pause_s", "bound_s"), 0.0)
    return DeltaPlan(
        problem_sha256="0" * 64, version="0", block_bytes=1 << 12, anchor_above_bytes=2**62, **fields, **times
    )


def main() -> None:
    """Be one end."""
    if sys.argv[1].startswith("send"):
        deltas = delta_plan("ask") if sys.argv[1] == "send-deltas" else None
        with StateSender(sys.argv[3:], token="secret", deltas=deltas) as sender:
            report = sender.send(state_of(1, int(sys.argv[2])), 1)
            print(1, sorted(report.failed), flush=True)
            state = state_of(2, int(sys.argv[2]))
            if deltas is not None:
                state = state_of(1, int(sys.argv[2]))
                state["head"][:, ::2] += 1
                state["embed"][::2] += 1
            whole = WeightSender._send_bucket

            def dying(self: WeightSender, chain: Any, source: Any, bucket: int, sent: dict[str, int]) -> None:
                if bucket == len(source.sizes) // 2:
                    time.sleep(1.0)  # the buckets before go out
                    os.kill(os.getpid(), signal.SIGKILL)
                whole(self, chain, source, bucket, sent)

            WeightSender._send_bucket = dying  # type: ignore[method-assign]  # the moment of its death
            sender.send(state, 2)
        return
    with StateReceiver(token="secret") as receiver:
        print(receiver.address, flush=True)
        while True:
            weights = receiver.receive()
            torch.save(weights.data, sys.argv[2] + ".part")
            Path(sys.argv[2] + ".part").replace(sys.argv[2])
            print(weights.version, flush=True)


if __name__ == "__main__":
    main()
