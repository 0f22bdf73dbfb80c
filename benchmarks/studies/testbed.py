"""Iteration times of PACE and its peers over a real network on this machine.

    sudo .venv/bin/python -m benchmarks testbed [KIND] [--json OUT.json] [--markdown OUT.md] [--chart OUT.png]

KIND is allreduce (the default), real (models with real compute), clipped (by the global norm), frameworks
(Lightning and Accelerate), hsdp or servers (parameter servers). Needs root, iproute2 and what scripts/install
installs. Prints a line for each setting; docs/guides/measure.md describes the rest.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before torch is loaded: all ranks share this machine's cores, and each look-up of the address of a socket in
# a namespace fails with a warning.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from benchmarks.harness.conditions import command, study_parser, write_whole
from benchmarks.harness.contenders import BY_NAME
from benchmarks.harness.layouts import parse_layout
from benchmarks.harness.prerequisites import require_network, require_packages, require_tensorflow

if TYPE_CHECKING:
    from benchmarks.harness.record import Grid


_LAYOUTS = (
    "Layouts: 4 (workers), 4+1 (and servers on hosts of their own), 4c (four of each on four hosts),"
    " 2x4 (two replicas of four shards)"
)


def main() -> int:
    """Measure a grid, list its contenders, or write the page of a record."""
    arguments, grid = parse(sys.argv[1:])
    if arguments.list:
        from benchmarks.harness.record import competing

        for contender in {
            each.name: each for layout in grid.layouts for each in competing(grid, layout, 1.0)
        }.values():
            print(f"{contender.name:24} {contender.label}")
        return 0
    if arguments.read:
        publish(json.loads(arguments.read.read_text()), arguments)
        return 0
    require_packages("torch", "horovod.torch", *(("matplotlib",) if arguments.chart else ()))
    require_network()
    if grid.tensorflow is not None:
        require_tensorflow(grid.tensorflow)
    load(grid)
    from benchmarks.harness.record import run

    def keep(record: dict[str, Any]) -> None:
        record["command"] = command()
        if arguments.json:
            write_whole(arguments.json, json.dumps(record, indent=1) + "\n")

    record = run(grid, _tell, keep=keep)
    publish(record, arguments)
    return 0


def load(grid: "Grid") -> None:
    """Load all that ranks will need, once: they are forked from here."""
    import torch
    import torch._dynamo  # DDP loads it when it is made; on eight ranks at once that takes a while

    import pace.runtime.horovod
    import pace.runtime.torch  # noqa: F401
    from benchmarks.harness.training import framework_loop

    for name in grid.contenders:
        if (framework := BY_NAME[name].framework) is not None:
            framework_loop.load(framework)
    torch.set_num_threads(1)


def publish(record: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Write the page and the chart, or print the page where no path is given."""
    from benchmarks.harness.report import draw, markdown

    if arguments.chart:
        draw(record, arguments.chart)
    text = markdown(record, chart=arguments.chart.name if arguments.chart else None)
    if arguments.markdown:
        write_whole(arguments.markdown, text)
    else:
        print(text)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse(given: list[str]) -> tuple[argparse.Namespace, "Grid"]:
    """Return the options, and the grid of the kind of record with what they change."""
    from benchmarks.harness.record import GRIDS, MODELS
    from benchmarks.harness.workload.real import MODELS as REAL_MODELS

    parser = study_parser(__doc__)
    models = {**MODELS, **REAL_MODELS}
    add = parser.add_argument
    add(
        "kind",
        choices=GRIDS,
        nargs="?",
        default="allreduce",
        help="What to compare (default: %(default)s); it sets the defaults of the other options",
    )
    add("--models", type=_several(str, models), metavar="A,B", help="Models to train: " + ", ".join(models))
    add("--layouts", type=_several(parse_layout), metavar="4,2+2,4c,2x4", help=_LAYOUTS)
    add(
        "--ratios",
        type=_several(float),
        metavar="0.5,1,2",
        help="Ratios of communication time to compute time",
    )
    add(
        "--contenders",
        type=_several(str, BY_NAME),
        metavar="A,B",
        help="Systems to measure; --list prints them (default: all of the kind)",
    )
    add("--clip", action="store_true", default=None, help="Clip gradients by their global norm")
    add("--pacing", choices=("on", "off", "both"), help="Pace connections to servers, or not (default: both)")
    add("--rate-mbit-s", type=float, metavar="R", help="Bandwidth of every link in Mbit/s, each way")
    add(
        "--inner-mbit-s",
        type=float,
        metavar="R",
        help="With hsdp: bandwidth of links inside a replica in Mbit/s; --rate-mbit-s is between replicas",
    )
    add("--compute-s", type=float, metavar="S", help="Compute time of an iteration in seconds")
    add("--rounds", type=int, metavar="N", help="Number of measurements of each contender")
    add("--windows", type=int, metavar="N", help="Number of measured iterations in each turn")
    add(
        "--tensorflow",
        type=Path,
        metavar="PYTHON",
        help="With servers: measure TensorFlow too, with this Python interpreter that has it",
    )
    add("--quick", action="store_true", help="Measure the first layout, model and ratio only, in two rounds")
    add("--list", action="store_true", help="Print the contenders and exit")
    add(
        "--json",
        type=Path,
        metavar="OUT",
        help="File for the record (JSON; default: none), written after every setting",
    )
    add("--markdown", type=Path, metavar="OUT", help="File for the page (Markdown; default: standard output)")
    add("--chart", type=Path, metavar="OUT", help="File for the chart (PNG, SVG or PDF; default: none)")
    add("--read", type=Path, metavar="JSON", help="Record to write as page and chart, without measuring")
    arguments = parser.parse_args(given)
    if arguments.pacing is not None:
        arguments.pacing = {"on": (True,), "off": (False,), "both": (True, False)}[arguments.pacing]
    grid = GRIDS[arguments.kind]
    names = {field.name for field in fields(grid)}
    changed = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    grid = replace(grid, **changed)
    if arguments.quick:
        grid = replace(
            grid, layouts=grid.layouts[:1], models=grid.models[:1], ratios=grid.ratios[:1], rounds=2
        )
    if grid.clip and any(BY_NAME[name].framework for name in grid.contenders):
        parser.error("--clip is not for frameworks: their loops clip as their own documentation says")
    if any(name in REAL_MODELS for name in grid.models):
        if grid.clip:
            parser.error("--clip has no reference for models with real compute")
        if any(not layout.plain or layout.workers != 2 for layout in grid.layouts):
            parser.error(
                f"{', '.join(REAL_MODELS)} compute for real, which takes a core for each host: use"
                " --layouts 2"
            )
    return arguments, grid


def _several(kind: Callable[[str], Any], known: Any = None) -> Callable[[str], tuple[Any, ...]]:
    def parse_all(text: str) -> tuple[Any, ...]:
        found = []
        for part in text.split(",") if text else ():
            if known is not None and part not in known:
                raise argparse.ArgumentTypeError(f'"{part}" is none of {", ".join(known)}')
            try:
                found.append(kind(part))
            except ValueError:
                raise argparse.ArgumentTypeError(f'"{part}" cannot be read') from None
        return tuple(found)

    return parse_all
