"""Predicts how long a round of DiLoCo takes if fragments are averaged while compute goes on.

Each worker takes inner steps of 1 s by itself. A fragment is pushed, averaged and pulled, and the step that
comes `overlap` inner steps later waits for it. One step of the document is one round.
"""

from typing import Any

from pace import StepsDocument
from pace_servers import Fleet
from pace_servers.throughput import simulate_steps

WORKERS = 8


def round_of(fragments: int, overlap: int, inner: int = 32, model_bytes: int = 800_000_000) -> StepsDocument:
    """Return a round of `inner` steps; a fragment has `overlap` of them to come back."""
    needed: dict[int, list[str]] = {}
    ops: list[dict[str, Any]] = []
    for step in range(inner):
        deps = [f"inner/{step - 1}"] if step else []
        ops.append({"name": f"inner/{step}", "resource": "worker", "deps": deps + needed.get(step, [])})
        if (step + 1) % (inner // fragments) == 0:
            part = (step + 1) * fragments // inner - 1
            size: dict[str, Any] = {"size_bytes": model_bytes // fragments}
            ops += [
                {"name": f"push/{part}", "resource": "uplink", "deps": [f"inner/{step}"], **size},
                {"name": f"outer/{part}", "resource": "ps", "deps": [f"push/{part}"]},
                {"name": f"pull/{part}", "resource": "downlink", "deps": [f"outer/{part}"], **size},
            ]
            needed.setdefault(step + 1 + overlap, []).append(f"pull/{part}")
    times = [1.0 if op["resource"] == "worker" else 0.0 for op in ops]
    return StepsDocument.model_validate(
        {
            "name": f"{fragments} fragments",
            "ops": ops,
            "steps": [{"duration_s": times}],
            "link": {"bytes_per_s": 125e6},
        }
    )


# A server of 4 Gb/s, and one worker in four is 10 % slower.
fleet = Fleet(barrier="all", server_bytes_per_s=(500e6,), speed=(1.0, 1.0, 1.0, 0.9))
for fragments, overlap in ((1, 0), (4, 0), (4, 6)):
    run = simulate_steps(round_of(fragments, overlap), WORKERS, fleet=fleet, steps=20, skip=4)
    print(f"{fragments} fragments, {overlap} steps of overlap: {WORKERS / run.steps_per_s:.1f} s a round")
