"""Predicted and measured throughput of asynchronous training: ``python -m benchmarks throughput COMMAND``.

``tcp`` and ``tensorflow`` measure and predict, ``shares`` measures how unequally connections share a link,
``repredict`` predicts recorded measurements again, ``record`` makes the tests' traces.

``tcp``, ``shares`` and ``tensorflow`` need root and iproute2; ``tensorflow`` and ``record`` an interpreter
that has TensorFlow 2.21 (``python -m venv tf; tf/bin/pip install tensorflow-cpu==2.21.0``). Nothing else may
run on the machine. Prints a line for every setting and a summary, and writes JSON.
"""

import argparse
import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.conditions import study_parser, write_json
from benchmarks.harness.prerequisites import require_network, require_tensorflow
from benchmarks.studies.throughput.compare import Comparison, compare_all, repredict_runs, tables
from benchmarks.studies.throughput.shapes import ALL_SHAPES, SHAPES, ModelShape
from benchmarks.studies.throughput.tcp_training import DISCIPLINES

if TYPE_CHECKING:
    from benchmarks.harness.network.hosts import Link

_FIXTURE = ModelShape(
    name="four layers",
    layers=(800_000, 100_000, 400_000, 200_000),
    forward_s=(0.02,) * 4,
    backward_s=(0.04,) * 4,
)


_FAIR = "let connections that share a link take turns, packet by packet (default: all wait in one queue)"
_SHARE_SPREAD = (
    "standard deviation of the shares of a link, as `shares` prints it (default: as in `pace predict`)"
)
_SPREAD_BYTES = (
    "size in bytes of the transfers with which --share-spread was measured (default: all vary equally)"
)

# With the 1514 of a frame TensorFlow is woken for every one, at twice the processor time.
_FAIR_PACKET_BYTES = 8 * 1024


def main() -> int:
    """Run the command line."""
    arguments = _arguments()
    if arguments.command == "repredict":
        repredicted, profiles = repredict_runs(
            arguments.records,
            steps=arguments.steps,
            skip=arguments.skip,
            share_spread=arguments.share_spread,
            share_spread_bytes=arguments.share_spread_bytes,
        )
        print(tables(repredicted, profiles))
        print(_summary(repredicted))
        return 0
    require_network()
    if arguments.command in ("tensorflow", "record"):
        require_tensorflow(arguments.python)
    if arguments.command == "record":
        _record(arguments)
        return 0
    if arguments.command == "shares":
        _shares(arguments)
        return 0
    began = time.monotonic()
    rows: list[dict[str, object]] = []
    found: list[Comparison] = []
    for comparison, row in _settings(arguments):
        rows.append(row)
        if comparison is None:
            errors = np.abs(np.array(row["replay_errors"]))
            downlinks = np.abs(np.array(row["downlink_errors"]))
            print(
                f"{row['system']}, {row['model']}, ratio {row['ratio']}, {row['servers']} servers: replay "
                f"median {np.median(errors):.2%}, worst {errors.max():.2%}; downlink ends median "
                f"{np.median(downlinks):.2%}, p95 {np.quantile(downlinks, 0.95):.2%}",
                flush=True,
            )
            continue
        found.append(comparison)
        print(f"  {_line(comparison)}", flush=True)
    print(_summary(found))
    write_json(arguments.json, {"seconds": time.monotonic() - began, "rows": rows})
    return 0


def _arguments() -> argparse.Namespace:
    parser = study_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("tcp", "tensorflow"):
        command = commands.add_parser(name)
        command.add_argument(
            "--models",
            nargs="+",
            choices=ALL_SHAPES,
            default=SHAPES,
            help="shapes of models (default: %(default)s)",
        )
        command.add_argument(
            "--ratios",
            nargs="+",
            type=float,
            default=[0.5, 1.0, 2.0],
            help="ratios of communication to compute (default: %(default)s)",
        )
        command.add_argument(
            "--workers",
            nargs="*",
            type=int,
            default=[1, 2, 4, 8],
            help="numbers of workers (default: %(default)s)",
        )
        command.add_argument(
            "--servers",
            nargs="+",
            type=int,
            default=[1, 2],
            help="numbers of parameter servers (default: %(default)s)",
        )
        command.add_number("--rate-mbit-s", 100.0, "bandwidth of every link in Mbit/s")
        command.add_number("--total-bytes", 4e6, "size of a model's parameters in bytes")
        command.add_number("--profiled", 30, "number of steps to profile")
        command.add_number("--steps", 100, "number of steps to measure, warm-up included")
        command.add_number("--skip", 50, "number of warm-up steps to discard")
        command.add_number("--repetitions", 3, "repetitions of each measurement")
        command.add_argument("--share-spread", type=float, help=_SHARE_SPREAD)
        command.add_argument("--share-spread-bytes", type=int, help=_SPREAD_BYTES)
        command.add_argument(
            "--quick", action="store_true", help="measure one small setting only, in two minutes"
        )
        command.add_argument("--json", type=Path, help="file for the results (JSON; default: none)")
        if name == "tcp":
            command.add_argument(
                "--discipline",
                choices=DISCIPLINES,
                default="fifo",
                help="how a link orders transfers (default: %(default)s)",
            )
        else:
            command.add_argument("--python", type=Path, required=True, help="interpreter that has TensorFlow")
            command.add_argument(
                "--default-window",
                action="store_true",
                help="leave TensorFlow's flow control on (default: off)",
            )
            command.add_argument("--fair-links", action="store_true", help=_FAIR)
    shares = commands.add_parser("shares", help="how unequally simultaneous transfers share a link")
    shares.add_argument(
        "--workers", nargs="+", type=int, default=[4, 8], help="numbers of workers (default: %(default)s)"
    )
    shares.add_number("--rate-mbit-s", 100.0, "bandwidth of every link in Mbit/s")
    shares.add_number("--bytes", 400_000, "size of a transfer in bytes")
    shares.add_number("--rounds", 20, "number of measured rounds")
    shares.add_argument(
        "--usual",
        action="store_true",
        help="use TCP's usual buffers and packets, as TensorFlow does (default: small ones)",
    )
    shares.add_argument("--fair-links", action="store_true", help=_FAIR)
    repredicted = commands.add_parser("repredict", help="predict again what earlier runs measured")
    repredicted.add_argument("records", nargs="+", type=Path, help="records (JSON) of earlier runs")
    repredicted.add_number("--steps", 100, "number of steps to measure, warm-up included")
    repredicted.add_number("--skip", 50, "number of warm-up steps to discard")
    repredicted.add_argument("--share-spread", type=float, help=_SHARE_SPREAD)
    repredicted.add_argument("--share-spread-bytes", type=int, help=_SPREAD_BYTES)
    record = commands.add_parser("record", help="make the traces that tests read")
    record.add_argument("--python", type=Path, required=True, help="interpreter that has TensorFlow")
    record.add_number("--servers", 1, "number of parameter servers")
    record.add_argument("--output", type=Path, required=True, help="folder for the traces")
    arguments = parser.parse_args()
    if arguments.command == "shares" and arguments.fair_links and not arguments.usual:
        parser.error("shares --fair-links is for TCP's usual buffers: add --usual")
    if arguments.command in ("tcp", "tensorflow", "repredict") and not 1 <= arguments.skip < arguments.steps:
        parser.error(f"--skip {arguments.skip}: expected 1 or more, and less than --steps {arguments.steps}")
    if arguments.command in ("tcp", "tensorflow", "repredict") and arguments.share_spread_bytes is not None:
        if arguments.share_spread is None:
            parser.error("--share-spread-bytes: expected the --share-spread that was measured with it")
        if arguments.share_spread_bytes < 1:
            parser.error(f"--share-spread-bytes {arguments.share_spread_bytes}: expected 1 or more")
    if arguments.command in ("tcp", "tensorflow"):
        for name in ("ratios", "workers", "servers"):
            if not all(value > 0 for value in getattr(arguments, name)):
                parser.error(f"--{name}: expected numbers above 0")
    return arguments


def _settings(arguments: argparse.Namespace) -> Iterator[tuple[Comparison | None, dict[str, Any]]]:
    quick = arguments.quick
    grid: dict[str, Any] = {
        "models": arguments.models[:1] if quick else arguments.models,
        "ratios": [1.0] if quick else arguments.ratios,
        "workers": [1, 2] if quick else arguments.workers,
        "servers": [1] if quick else arguments.servers,
        "total_bytes": arguments.total_bytes,
        "profiled": 12 if quick else arguments.profiled,
        "steps": 30 if quick else arguments.steps,
        "skip": 8 if quick else arguments.skip,
        "repetitions": 1 if quick else arguments.repetitions,
        "share_spread": arguments.share_spread,
        "share_spread_bytes": arguments.share_spread_bytes,
    }
    if arguments.command == "tcp":
        from benchmarks.studies.throughput.tcp_runs import TcpSystem

        return compare_all(TcpSystem(arguments.discipline, arguments.rate_mbit_s), **grid)
    from benchmarks.studies.throughput.tensorflow_runs import TensorFlowSystem

    window_off = not arguments.default_window
    return compare_all(TensorFlowSystem(arguments.python, _link(arguments), window_off=window_off), **grid)


def _line(one: Comparison) -> str:
    measured = ", ".join(f"{rate:.3f}" for rate in one.measured)
    coarse = ", ".join(
        f"{label} {one.error_of(name):+.1%}"
        for name, label in (
            ("cynthia", "Cynthia"),
            ("halved_cynthia", "halved"),
            ("closed_network", "network"),
            ("bound", "bound"),
        )
    )
    return (
        f"W={one.workers} M={one.servers}: measured {measured}; predicted {one.predicted:.3f} "
        f"({one.low:.3f}-{one.high:.3f}) {one.error:+.1%}; {coarse}; load {one.load_average:.1f}"
    )


def _summary(found: list[Comparison]) -> str:
    apart = sum(not one.comparable for one in found)
    found = [one for one in found if one.comparable]
    if not found:
        return f"workers too far apart in all {apart} settings" if apart else "profiled only"

    def mean_of(name: str) -> float:
        return float(np.mean([abs(one.error_of(name)) for one in found]))

    errors = np.array([abs(one.error) for one in found])
    return (f"{apart} settings with workers too far apart; " if apart else "") + (
        f"{len(found)} settings: simulation median {np.median(errors):.2%}, worst {errors.max():.2%}, mean "
        f"{errors.mean():.2%}; mean of Cynthia {mean_of('cynthia'):.2%}, halved "
        f"{mean_of('halved_cynthia'):.2%}, of the closed network {mean_of('closed_network'):.2%}, of the "
        f"bound {mean_of('bound'):.2%}"
    )


def _shares(arguments: argparse.Namespace) -> None:
    from benchmarks.studies.throughput.tcp_runs import even_link, measure_shares
    from benchmarks.studies.throughput.tcp_training import BUFFER_BYTES

    rate = arguments.rate_mbit_s

    for workers in arguments.workers:
        for direction, spread in measure_shares(
            workers,
            size_bytes=arguments.bytes,
            link=_link(arguments) if arguments.usual else even_link(rate),
            rounds=arguments.rounds,
            buffer_bytes=None if arguments.usual else BUFFER_BYTES,
        ).items():
            print(f"{workers} transfers at once, {direction}: share_spread {spread:.3f}", flush=True)


def _link(arguments: argparse.Namespace) -> "Link":
    """Return a link with TCP's usual packets, or one with smaller packets, where hosts take turns."""
    from benchmarks.harness.network.hosts import Link

    if arguments.fair_links:
        return Link(rate_mbit_s=arguments.rate_mbit_s, packet_bytes=_FAIR_PACKET_BYTES, fair=True)
    return Link(rate_mbit_s=arguments.rate_mbit_s)


def _record(arguments: argparse.Namespace) -> None:
    from benchmarks.harness.network.hosts import Link
    from benchmarks.studies.throughput.tensorflow_runs import run_tensorflow

    run = run_tensorflow(
        arguments.python,
        _FIXTURE,
        workers=1,
        servers=arguments.servers,
        link=Link(rate_mbit_s=50),
        steps=8,
        trace=True,
    )
    document = json.dumps(run[0]["traces"]).encode()
    arguments.output.write_bytes(gzip.compress(document, mtime=0))
