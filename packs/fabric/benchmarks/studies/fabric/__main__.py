"""Training over a fabric on links that change, compared with a plain server, a ring and a tree.

python -m benchmarks fabric --networks N2 --compute C1,C3 --json runs/n2.json --page page.md
python -m benchmarks fabric --networks even --compute equal --contenders fabric,replica-4
python -m benchmarks fabric --show runs/*.json --page page.md

Eight hosts run two workers each, beside a server and a scheduler. Link rates are drawn again every 25 s.
Every contender and the simulator get the same computations and links. Needs root and iproute2. One network
with one computation takes about `--seconds` for each contender.

Besides the default contenders, there are:

- fabric-s waits for all updates of a round.
- replica-N keeps a replica that is at most N updates of a host behind the server.
- patient-N is replica-N, but sends nothing until half of that bound is used.
- killed-NORM kills the server half way through; the replica is at most NORM behind.
"""

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.conditions import study_parser
from benchmarks.harness.network.hosts import Host, Link, hosts
from benchmarks.harness.prerequisites import require_network, require_packages
from benchmarks.harness.report import table
from benchmarks.studies.fabric.collectives import train_synchronously
from benchmarks.studies.fabric.fabric_run import FabricVariant, train_over_fabric
from benchmarks.studies.fabric.plain_server import train_plainly
from benchmarks.studies.fabric.setting import FULL_BYTES_PER_S, Trained, payload_mbit_s, scenario_of
from benchmarks.studies.papers.mlfabric import CLAIMS, COMPUTE
from pace_fabric.documents.batch import DivergenceLimit
from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.simulation import simulate_fabric

CONTENDERS = ("fabric", "fabric-oracle", "async", "ring", "tree")
OTHERS = ("fabric-s", "replica-N", "patient-N", "killed-NORM")
_SIMULATED = {"fabric-s": "mlfabric-s", "async": "async", "ring": "ring", "tree": "tree"}


def main() -> None:
    """Run the requested cells, and print and write their results."""
    parser = study_parser(__doc__)
    parser.add_argument(
        "--networks",
        default="N1,N2,N3",
        help="networks, separated by commas; even has constant links (default: %(default)s)",
    )
    parser.add_argument(
        "--compute",
        default="C1,C2,C3",
        help="computations, separated by commas; equal has no stragglers (default: %(default)s)",
    )
    parser.add_argument(
        "--contenders",
        default="fabric,async,ring,tree",
        help=f"systems to run, separated by commas: {', '.join(CONTENDERS + OTHERS)} (default: %(default)s)",
    )
    parser.add_number("--flows", 2, "number of transfers that share a host's link in a ring or tree")
    parser.add_number("--machines", 8, "number of machines")
    parser.add_number("--megabytes", 5.0, "size of an update in MB; compute times scale with it")
    parser.add_number("--seconds", 75.0, "duration of a run in seconds")
    parser.add_number("--seed", 0, "seed of the random draws")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run N1 with C1 only, on 2 hosts with 0.5 MB for 6 s, to see whether it works",
    )
    parser.add_argument("--json", type=Path, help="file for the results (JSON; default: none)")
    parser.add_argument(
        "--show", type=Path, nargs="*", help="show results of earlier runs (JSON) instead of running"
    )
    parser.add_argument("--page", type=Path, help="file for the tables (Markdown; default: none)")
    given = parser.parse_args()
    if given.quick:
        given.networks, given.compute, given.machines = "N1", "C1", 2
        given.megabytes, given.seconds, given.contenders = 0.5, 6.0, ",".join(CONTENDERS)
    cells = merged([cell for path in given.show or [] for cell in json.loads(path.read_text())])
    if given.show is None:
        try:
            scenarios = _scenarios(given)
        except ValueError as error:
            parser.error(str(error))
        require_packages("torch")
        require_network()
        for (network, compute), scenario in scenarios.items():
            cells.append(_cell(network, compute, scenario, given.contenders.split(",")))
            if given.json:
                given.json.write_text(json.dumps(cells, indent=1) + "\n")
    page = page_of(cells)
    print(page)
    if given.page:
        given.page.write_text(page)


def _scenarios(given: argparse.Namespace) -> dict[tuple[str, str], FabricScenario]:
    return {
        (network, compute): scenario_of(
            network,
            compute,
            machines=given.machines,
            megabytes=given.megabytes,
            seconds=given.seconds,
            seed=given.seed,
            flows=given.flows,
        )
        for network in given.networks.split(",")
        for compute in given.compute.split(",")
    }


def _cell(network: str, compute: str, scenario: FabricScenario, contenders: Sequence[str]) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "network": network,
        "compute": compute,
        "machine": platform.node(),
        "command": " ".join(sys.argv[1:]),
        "scenario": scenario.model_dump(mode="json"),
        "contenders": {},
    }
    for contender in contenders:
        trained = measure(contender, scenario)
        cell["contenders"][contender] = {
            "iteration_s": trained.iteration_s(scenario.num_workers),
            "simulated_s": simulated(contender, scenario),
            "facts": trained.facts,
        }
        seconds, foreseen = (cell["contenders"][contender][key] for key in ("iteration_s", "simulated_s"))
        print(f"{network} {compute} {contender}: {seconds} s, simulated {foreseen} s", file=sys.stderr)
    return cell


def merged(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one cell for each network and computation, with the contenders of all runs."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in cells:
        at = (cell["network"], cell["compute"])
        known = found.setdefault(at, cell | {"contenders": {}})
        known["contenders"] |= cell["contenders"]
    return [found[at] for at in sorted(found)]


def measure(contender: str, scenario: FabricScenario) -> Trained:
    """Train once on hosts of its own."""
    full = Link(rate_mbit_s=payload_mbit_s(FULL_BYTES_PER_S))
    with tempfile.TemporaryDirectory() as name, hosts([full] * (scenario.machines + 3)) as made:
        variant, machines = variant_of(contender, scenario), made[2 : 2 + scenario.machines]
        if variant is not None:
            return train_over_fabric(scenario, made, Path(name), variant)
        match contender:
            case "async":
                return train_plainly(scenario, _server(made), machines)
            case "ring":
                return train_synchronously(scenario, "ring", machines)
            case "tree":
                return train_synchronously(scenario, "tree", machines)
            case _:
                raise SystemExit(f"no contender {contender}: there are {', '.join(CONTENDERS + OTHERS)}")


def variant_of(contender: str, scenario: FabricScenario) -> FabricVariant | None:
    """Return how the fabric runs as this contender; None if it is none of the fabric's."""
    kind, _, most = contender.partition("-")
    match kind:
        case "fabric" if contender == "fabric":
            return FabricVariant()
        case "fabric" if contender == "fabric-oracle":
            lag_s = scenario.lag_s if scenario.links.shares != (1.0,) else 0.0
            return FabricVariant(knowledge="oracle", lag_s=lag_s)
        case "fabric" if contender == "fabric-s":
            return FabricVariant(synchronous=True)
        case "replica" | "patient":
            limit = DivergenceLimit(kind="updates", max=float(most))
            return FabricVariant(replica=limit, patient=kind == "patient")
        case "killed":
            limit = DivergenceLimit(kind="norm", max=float(most))
            return FabricVariant(replica=limit, kill_s=scenario.duration_s / 2)
    return None


def _server(made: list[Host]) -> Host:
    return made[1]


def simulated(contender: str, scenario: FabricScenario) -> float | None:
    """Return what the simulator says of the same computations and links; None where it has no such run."""
    kind, _, most = contender.partition("-")
    if kind == "killed":
        return None
    if kind in ("replica", "patient"):
        lead = int(most) * scenario.workers_per_machine
        knobs = {"replicate_updates": lead, "replicate_patiently": kind == "patient"}
        scenario = scenario.model_copy(update=knobs)
    run = simulate_fabric(scenario, _SIMULATED.get(contender, "mlfabric-a"))
    commits = [(commit.at_s, commit.num_updates) for commit in run.commits]
    return Trained(commits=commits).iteration_s(scenario.num_workers)


Cell = dict[str, Any]


def page_of(cells: Sequence[Cell]) -> str:
    """Return tables of measured and simulated times, speeds over the ring, and what logs say."""
    parts = ["## Seconds for one update of each worker: measured (simulated)", _times(cells)]
    parts += ["## Speed over the ring: measured (simulated; the paper's claim)", _speeds(cells)]
    parts += ["## What the fabric's logs say", _logs(cells)]
    return "\n\n".join(parts) + "\n"


def _names(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(name for cell in cells for name in cell["contenders"]))


def _at(cell: Cell) -> str:
    return f"{cell['network']} {cell['compute']}"


def _times(cells: Sequence[Cell]) -> str:
    names = _names(cells)
    rows = []
    for cell in cells:
        row = [_at(cell)]
        for name in names:
            found = cell["contenders"].get(name)
            row.append("" if found is None else f"{_s(found['iteration_s'])} ({_s(found['simulated_s'])})")
        rows.append(row)
    return table(("", *names), rows)


def _s(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _speeds(cells: Sequence[Cell]) -> str:
    names = [name for name in _names(cells) if name != "ring"]
    rows = []
    for cell in cells:
        ring = cell["contenders"].get("ring")
        if ring is None:
            continue
        row = [_at(cell)]
        for name in names:
            found = cell["contenders"].get(name)
            row.append("" if found is None else f"{_ratio(ring, found)}")
        claims = dict(zip(COMPUTE, CLAIMS.get(cell["network"], ()), strict=False))
        claim = claims.get(cell["compute"])
        rows.append([*row, "" if claim is None else f"{claim:.2f}"])
    return table(("", *names, "claim"), rows)


def _ratio(ring: Cell, other: Cell) -> str:
    both = []
    for key in ("iteration_s", "simulated_s"):
        both.append(f"{ring[key] / other[key]:.2f}" if ring[key] and other[key] else "none")
    return f"{both[0]} ({both[1]})"


def _logs(cells: Sequence[Cell]) -> str:
    rows = []
    for cell in cells:
        for name, found in cell["contenders"].items():
            facts = found["facts"]
            if name not in ("fabric", "fabric-oracle"):
                continue
            off = facts["median_off_plan"]
            rows.append(
                [
                    _at(cell),
                    facts["network_state"],
                    str(facts["updates"]),
                    str(facts["commits"]),
                    str(sum(facts["dropped"].values())),
                    f"{facts['greatest_delay']} of {cell['scenario']['delay_bound'] // 2}",
                    str(len(facts["violations"])),
                    f"{facts['server_bytes_over_plan']:.3f}",
                    "none" if off is None else f"{off:.3f}",
                ]
            )
    head = ("", "network state", "updates", "commits", "dropped", "greatest delay", "violations")
    return table((*head, "server bytes over plan", "median off plan"), rows)
