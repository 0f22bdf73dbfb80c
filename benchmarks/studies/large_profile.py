"""Time to load a profile of 100,000 ops and 10,000 gradients.

    .venv/bin/python -m benchmarks large_profile [--against WORKTREE]

With another worktree of the project, loads are taken in turns with its code, in processes of their own.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness.conditions import study_parser

LOAD = """
import sys, time
from pathlib import Path
from pace import parse_profile
document = Path(sys.argv[1]).read_bytes()
times = []
for _ in range(3):
    before = time.process_time()
    parse_profile(document).timing
    times.append(time.process_time() - before)
print(min(times))
"""


def large_profile(num_gradients: int = 10_000, *, per_layer: int = 5) -> dict[str, Any]:
    """Return a profile of a backward and a forward chain with so many ops a layer."""
    ops: list[dict[str, Any]] = []
    gradients: list[dict[str, Any]] = []
    for kind, layers in (("bwd", range(num_gradients - 1, -1, -1)), ("fwd", range(num_gradients))):
        for layer in layers:
            for part in range(per_layer):
                first_forward = kind == "fwd" and part == 0
                ops.append(
                    {
                        "name": f"{kind}/layer{layer}/part{part}",
                        "duration_s": 1e-5,
                        "stream": "compute",
                        "deps": [ops[-1]["name"]] if ops else [],
                        "waits_for": [f"layer{layer}.weight"] if first_forward else [],
                    }
                )
            if kind == "bwd":
                gradients.append(
                    {"name": f"layer{layer}.weight", "size_bytes": 40_000, "producer": ops[-1]["name"]}
                )
    return {
        "schema_version": 1,
        "name": "large",
        "workers": 8,
        "ops": ops,
        "gradients": gradients,
        "allreduce": {"kind": "affine", "latency_s": 1e-4, "seconds_per_byte": 1e-9},
    }


def load_s(tree: Path, document: Path) -> float:
    """Return the processor time that a tree's code takes to validate a profile and derive its timing."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    command = [sys.executable, "-c", LOAD, str(document)]
    return float(subprocess.run(command, env=environment, cwd=tree, capture_output=True, check=True).stdout)


def main() -> None:
    """Load and print."""
    parser = study_parser(__doc__)
    parser.add_argument(
        "--against", type=Path, help="another checkout of this project, to compare with (default: none)"
    )
    parser.add_number("--rounds", 5, "number of measured rounds")
    given = parser.parse_args()
    here = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory() as name:
        document = Path(name) / "profile.json"
        document.write_text(json.dumps(large_profile()))
        ours, theirs = [], []
        for _ in range(given.rounds):
            ours.append(load_s(here, document))
            if given.against:
                theirs.append(load_s(given.against.resolve(), document))
    print(f"median {statistics.median(ours):.3f} s")
    if theirs:
        ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
        print(f"there {statistics.median(theirs):.3f} s, ratio {ratio:.3f}")
