"""The command line of ``python -m benchmarks testbed --exchange ps``."""

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def main(given: Sequence[str]) -> int:
    """Measure policies of parameter servers, or list them, or write the page of a record."""
    arguments = _arguments(given)
    from benchmarks.harness.exchange.report import exchange_page

    def publish(record: dict[str, Any]) -> None:
        text = exchange_page(record)
        if arguments.markdown:
            write_whole(arguments.markdown, text)
        else:
            print(text)

    if arguments.list:
        _list()
        return 0
    if arguments.read:
        publish(json.loads(arguments.read.read_text()))
        return 0
    from benchmarks.harness.network.errors import TestbedUnavailable, WrongRate
    from benchmarks.harness.network.hosts import why_unavailable

    reason = why_unavailable()
    if reason is not None:
        print(f"testbed: {reason}", file=sys.stderr)
        return 3
    # All that ranks will need, loaded once: they are forked from here.
    import torch
    import torch._dynamo

    import pace.runtime.torch  # noqa: F401
    from benchmarks.harness.exchange.record import run_exchange

    torch.set_num_threads(1)
    command = shlex.join(["python", "-m", "benchmarks", "testbed", *given])

    def keep(record: dict[str, Any]) -> None:
        record["command"] = command
        if arguments.json:
            write_whole(arguments.json, json.dumps(record, indent=1) + "\n")

    try:
        record = run_exchange(
            _grid(arguments), lambda text: print(text, file=sys.stderr, flush=True), keep=keep
        )
    except (TestbedUnavailable, WrongRate) as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 3
    publish(record)
    return 0


def write_whole(path: Path, text: str) -> None:
    """Replace a file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_text(text)
    unfinished.replace(path)


def _list() -> None:
    from benchmarks.harness.exchange.contenders import CONTENDERS

    for contender in CONTENDERS:
        knobs = ", ".join(f"{name}={value}" for name, value in contender.knobs)
        print(f"{contender.name:18} {contender.label} {f'({knobs})' if knobs else ''}".rstrip())


def _grid(arguments: argparse.Namespace) -> Any:
    from benchmarks.harness.exchange.record import ExchangeGrid
    from benchmarks.harness.layouts import Layout

    layouts = arguments.layouts
    if arguments.servers:
        layouts = tuple(
            Layout(workers, servers) for workers in arguments.workers for servers in arguments.servers
        )
    return ExchangeGrid(
        layouts=layouts[:1] if arguments.quick else layouts,
        models=arguments.models[:1] if arguments.quick else arguments.models,
        ratios=arguments.ratios[:1] if arguments.quick else arguments.ratios,
        pacing={"on": (True,), "off": (False,), "both": (True, False)}[arguments.pacing],
        rate_mbit_s=arguments.rate_mbit_s,
        compute_s=arguments.compute_s,
        only=arguments.contenders,
        rounds=2 if arguments.quick else arguments.rounds,
        tensorflow=arguments.tensorflow,
    )


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    from benchmarks.harness.exchange.contenders import EXCHANGE_BY_NAME
    from benchmarks.harness.exchange.record import ExchangeGrid
    from benchmarks.harness.layouts import parse_layout
    from benchmarks.harness.record import MODELS

    defaults = ExchangeGrid()
    parser = argparse.ArgumentParser(prog="python -m benchmarks testbed --exchange ps", description=__doc__)
    parser.add_argument("--exchange", choices=("ps",))
    parser.add_argument("--list", action="store_true", help="name the contenders")
    parser.add_argument("--models", type=_several(str, MODELS), default=defaults.models, metavar="A,B")
    parser.add_argument(
        "--layouts",
        type=_several(parse_layout),
        default=defaults.layouts,
        metavar="2+2,4+1,4c",
        help="workers and servers; 4c: four of each on four hosts, against rings",
    )
    parser.add_argument("--workers", type=_several(int), default=(2,), metavar="2,4", help="with --servers")
    parser.add_argument(
        "--servers", type=_several(int), default=(), metavar="1,2", help="on hosts of their own"
    )
    parser.add_argument("--ratios", type=_several(float), default=defaults.ratios, metavar="0.5,1,2")
    parser.add_argument("--pacing", choices=("on", "off", "both"), default="both")
    parser.add_argument(
        "--contenders", type=_several(str, EXCHANGE_BY_NAME), default=(), metavar="A,B", help="only these"
    )
    parser.add_argument("--rate-mbit-s", type=float, default=defaults.rate_mbit_s, metavar="R")
    parser.add_argument("--compute-s", type=float, default=defaults.compute_s, metavar="S")
    parser.add_argument("--rounds", type=int, default=defaults.rounds, metavar="N")
    parser.add_argument("--quick", action="store_true", help="the first layout, model and ratio, two rounds")
    parser.add_argument(
        "--tensorflow", type=Path, metavar="PYTHON", help="an interpreter with TensorFlow 2.21: that too"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="kept up to date after every setting")
    parser.add_argument("--markdown", type=Path, metavar="OUT", help="write the page here, not to stdout")
    parser.add_argument("--read", type=Path, metavar="JSON", help="measure nothing: the page of this record")
    return parser.parse_args(given)


def _several(kind: Callable[[str], Any], known: Any = None) -> Callable[[str], tuple[Any, ...]]:
    def parse(text: str) -> tuple[Any, ...]:
        found = []
        for part in text.split(",") if text else ():
            if known is not None and part not in known:
                raise argparse.ArgumentTypeError(f'"{part}" is none of {", ".join(known)}')
            try:
                found.append(kind(part))
            except ValueError:
                raise argparse.ArgumentTypeError(f'"{part}" cannot be read') from None
        return tuple(found)

    return parse
