"""Every policy on every bundled profile and bandwidth, in the simulator; prints Markdown.

    python -m benchmarks papers.who_wins [--workers 8]

Nothing is measured: profiles are computed from architectures and windows are simulated, without load.
"""

from benchmarks.harness.conditions import study_parser
from pace.documents.load import NO_LOAD
from pace.documents.profile import Profile
from pace.models import build
from pace.planning.fusion.choice import TIE
from pace.simulation import POLICIES
from pace.whatif import Cell, Grid, what_if

BANDWIDTHS_GBPS = (1.0, 2.0, 5.0, 8.0, 10.0, 12.0, 15.0, 20.0, 25.0, 40.0, 100.0)
BATCHES = {
    "vgg16": 64,
    "resnet50": 32,
    "inception-v3": 32,
    "seq2seq": 4096,
    "transformer": 8192,
    "bert-large": 4096,
}
DEVICE_TFLOPS = 8.0


def profiles() -> list[Profile]:
    """Return the profiles of the table."""
    return [
        build(name, device_tflops=DEVICE_TFLOPS, batch=batch, workers=8).replace(load=NO_LOAD)
        for name, batch in BATCHES.items()
    ]


def winners(cells: tuple[Cell, ...]) -> str:
    """Return the fastest policies, all that PACE takes for equally fast."""
    fastest = min(cell.iteration_s for cell in cells)
    return ", ".join(cell.policy for cell in cells if cell.iteration_s <= fastest * (1 + TIE))


def main() -> None:
    """Print one table a profile."""
    parser = study_parser(__doc__)
    parser.add_number("--workers", 8, "number of workers")
    workers = parser.parse_args().workers
    grid = Grid(bandwidth_gbps=BANDWIDTHS_GBPS, workers=(workers,), policies=POLICIES)
    for profile in profiles():
        result = what_if(profile, grid, processes=1)
        print(f"\n### {profile.metadata['architecture']}, {workers} workers\n")
        print("| Gb/s | optimal, ms | efficiency | over fifo | horovod | ddp | best other | fastest |")
        print("| ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |")
        for cells in result.points():
            of = {cell.policy: cell for cell in cells}
            ours = of["pace"]
            others = [cell for cell in cells if cell.policy not in ("pace", "paper")]
            best = min(others, key=lambda cell: cell.iteration_s)
            gains = " | ".join(
                f"{(of[name].iteration_s / ours.iteration_s - 1) * 100:.1f} %"
                for name in ("fifo", "horovod", "ddp")
            )
            against = f"{best.policy} {(best.iteration_s / ours.iteration_s - 1) * 100:.1f} %"
            print(
                f"| {ours.bandwidth_gbps:g} | {ours.iteration_s * 1e3:.2f} "
                f"| {ours.scaling_efficiency * 100:.0f} % | {gains} | {against} | {winners(cells)} |"
            )
