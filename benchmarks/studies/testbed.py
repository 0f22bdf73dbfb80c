"""Measure PACE and its peers over a real network on this machine: ``python -m benchmarks testbed``.

Needs root, iproute2 and what scripts/install installs. Prints a line for every setting, writes JSON and,
where asked, a page and a chart.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Before torch is loaded: W ranks share this machine's cores, and lookups of addresses of sockets that
# live in a namespace fail with a warning each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def main() -> int:
    """Run the command line."""
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--exchange", choices=("allreduce", "ps"), default="allreduce")
    if first.parse_known_args()[0].exchange == "ps":
        from benchmarks.harness.exchange.command import main as exchange

        return exchange(sys.argv[1:])
    arguments = _arguments()
    if arguments.read:
        record = json.loads(arguments.read.read_text())
        publish(record, record["command"], arguments.markdown, arguments.chart)
        return 0
    from benchmarks.harness.network.errors import TestbedUnavailable, WrongRate
    from benchmarks.harness.network.hosts import why_unavailable

    reason = why_unavailable()
    if reason is not None:
        print(f"testbed: {reason}", file=sys.stderr)
        return 3
    # All that ranks will need, loaded once: they are forked from here.
    import horovod.torch  # noqa: F401
    import torch
    import torch._dynamo  # DDP loads it when it is made; on eight ranks at once that takes a while

    import pace.runtime.horovod
    import pace.runtime.torch  # noqa: F401
    from benchmarks.harness.contenders import BY_NAME
    from benchmarks.harness.record import Grid, run
    from benchmarks.harness.traces import write_traces
    from benchmarks.harness.training.framework_loop import load

    for name in arguments.contenders:
        if (framework := BY_NAME[name].framework) is not None:
            load(framework)
    torch.set_num_threads(1)
    defaults = Grid()
    grid = Grid(
        models=arguments.models,
        workers=arguments.workers,
        ratios=arguments.ratios,
        rate_mbit_s=arguments.rate_mbit_s,
        compute_s=arguments.compute_s,
        real_models=arguments.real_models,
        hsdp_models=arguments.hsdp_models,
        only=arguments.contenders,
        clip=arguments.clip,
        rounds=2 if arguments.quick else arguments.rounds,
        rounds_elsewhere=2 if arguments.quick else min(arguments.rounds, defaults.rounds_elsewhere),
    )
    traces: dict[tuple[str, int, float], Any] | None = {} if arguments.traces else None
    command = shlex.join(["python", "-m", "benchmarks", "testbed", *sys.argv[1:]])

    def keep(record: dict[str, Any]) -> None:
        if arguments.json:
            _write(arguments.json, json.dumps({"command": command, **record}, indent=1) + "\n")

    try:
        record = run(grid, _tell, traces=traces, keep=keep)
    except (TestbedUnavailable, WrongRate) as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 3
    if traces is not None:
        for path in write_traces(traces, arguments.traces):
            _tell(f"wrote {path}")
    publish(record, command, arguments.markdown, arguments.chart)
    return 0


def publish(record: dict[str, Any], command: str, page: Path | None, chart: Path | None) -> None:
    """Write the page and the chart, or print the page where no path is given."""
    from benchmarks.harness.report import markdown

    if chart:
        from benchmarks.harness.chart import draw

        draw(record, chart)
    text = markdown(record, command=command, chart=chart.name if chart else None)
    if page:
        _write(page, text)
    else:
        print(text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_text(text)
    unfinished.replace(path)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    from benchmarks.harness.contenders import BY_NAME, FRAMEWORK_PAIRS
    from benchmarks.harness.record import MODELS, Grid
    from benchmarks.harness.workload.real import MODELS as REAL_MODELS

    defaults = Grid()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks testbed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--exchange",
        choices=("allreduce", "ps"),
        default="allreduce",
        help="ps: policies of parameter servers instead, with options of their own (--exchange ps --help)",
    )
    parser.add_argument("--models", type=_names(MODELS), default=defaults.models, metavar="A,B")
    parser.add_argument(
        "--real-models",
        type=_names(REAL_MODELS),
        default=defaults.real_models,
        metavar="A,B",
        help=f"with real compute, on two hosts: {', '.join(REAL_MODELS)}",
    )
    parser.add_argument(
        "--hsdp-models",
        type=_names(MODELS),
        default=defaults.hsdp_models,
        metavar="A,B",
        help="in fully_shard on two replicas of two shards each, where there are four hosts",
    )
    parser.add_argument("--workers", type=_integers, default=defaults.workers, metavar="2,4,8")
    parser.add_argument("--ratios", type=_floats, default=defaults.ratios, metavar="0.5,1,2")
    parser.add_argument("--contenders", type=_names(BY_NAME), default=(), metavar="A,B", help="only these")
    parser.add_argument(
        "--clip",
        action="store_true",
        help="clip gradients by their global norm, and have those compete who can",
    )
    parser.add_argument("--rate-mbit-s", type=float, default=defaults.rate_mbit_s, metavar="R")
    parser.add_argument("--compute-s", type=float, default=defaults.compute_s, metavar="S")
    parser.add_argument("--rounds", type=int, default=defaults.rounds, metavar="N")
    parser.add_argument("--quick", action="store_true", help="two rounds a contender")
    parser.add_argument("--json", type=Path, metavar="OUT", help="kept up to date after every setting")
    parser.add_argument("--markdown", type=Path, metavar="OUT", help="write the page here, not to stdout")
    parser.add_argument("--chart", type=Path, metavar="OUT", help="PNG, SVG or PDF")
    parser.add_argument(
        "--read", type=Path, metavar="JSON", help="measure nothing: page and chart of this record"
    )
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="predicted and measured windows")
    parser.add_argument(
        "--frameworks",
        action="store_true",
        help="each framework's own default against PACE under it: by default ResNet50 and Transformer on four"
        " hosts at ratio 1",
    )
    if parser.parse_known_args()[0].frameworks:
        parser.set_defaults(
            models=("resnet50", "transformer"),
            workers=(4,),
            ratios=(1.0,),
            contenders=tuple(name for pair in FRAMEWORK_PAIRS.values() for name in pair),
        )
    arguments = parser.parse_args()
    if arguments.clip and any(BY_NAME[name].framework for name in arguments.contenders):
        parser.error("--clip is not for frameworks: their loops clip as their own documentation says")
    if arguments.clip and arguments.real_models:
        parser.error("--clip has no reference for real compute: leave --real-models out")
    return arguments


def _names(known: Any) -> Any:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(",")) if text else ()
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f'"{name}" is none of {", ".join(known)}')
        return names

    return parse


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _parts(text))


def _floats(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in _parts(text))


def _parts(text: str) -> Sequence[str]:
    return text.split(",")
