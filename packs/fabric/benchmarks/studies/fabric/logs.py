"""What the commit log and the transfer log of a run say."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from pace_fabric.runtime.commit_log import LoggedCommit, Vector, read_log, replay, violations
from pace_fabric.runtime.update_records import worker_and_number


def random_update(worker: str, number: int, numbers: int) -> Vector:
    """Return an update that a replay can draw again."""
    seed = [int(worker.removeprefix("w")), number]
    update: Vector = np.random.default_rng(seed).standard_normal(numbers, dtype=np.float32)
    return update


def judged(folder: Path, first: Vector, bound: int, status: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return what the commit log and the transfer log in a folder say of a run."""
    lines = list(read_log(folder / "server.jsonl"))
    commits = [line for line in lines if isinstance(line, LoggedCommit)]

    def update(name: str) -> Vector:
        worker, number = worker_and_number(name)
        return random_update(worker, number, len(first))

    model, _ = replay(first, lines, update)
    transfers = [json.loads(line) for line in (folder / "transfers.jsonl").read_text().splitlines()]
    long = [t for t in transfers if t["arrived_s"] - t["began_s"] >= 0.1 and t["purpose"] == "update"]
    off = [abs(t["arrived_s"] - t["planned_s"]) / (t["arrived_s"] - t["began_s"]) for t in long]
    received = status["hosts"]["server"]["received_wire_bytes"]
    planned = status["planned_server_bytes"]
    return {
        "network_state": status["network_state"],
        "violations": violations(lines, bound),
        "updates": sum(len(line.members) for line in commits),
        "commits": len(commits),
        "updates_per_s": sum(len(line.members) for line in commits) / seconds,
        "greatest_delay": max((delay for line in commits for delay in line.delays), default=0),
        "dropped": status["dropped"],
        "server_bytes_over_plan": received / planned if planned else None,
        "median_off_plan": float(np.median(off)) if off else None,
        "replayed_norm": float(np.linalg.norm(model.astype(np.float64))),
        "greatest_lead": status["greatest_lead"],
    }
