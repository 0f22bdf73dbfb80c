"""``pace import`` and ``pace fit``: profiles and costs from files of other tools."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pace.cli.cost_options import Bandwidth, Cost, Latency, given_cost, needed_cost
from pace.counted import counted
from pace.documents.profile import MOST_WORKERS, Profile
from pace.errors import InvalidOptions
from pace.formats.kineto_clocks import TraceClock
from pace.terminal.command_line import CommandGroup, CommandLine, file_argument, file_option, output_option
from pace.terminal.console import (
    ExecutionTraceOption,
    JsonOption,
    ParametersOption,
    question_tflops,
    write_profile,
)
from pace.terminal.reporting import reported


class ImportCommands(CommandGroup):
    """The commands, each for one format; a file in the place of a format is told by its content."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of a format, or the one for any format where the first argument is a path."""
        if args and args[0] not in self.commands and (Path(args[0]).exists() or {".", "/"} & {*args[0]}):
            args = ["auto", *args]
        return super().resolve_command(ctx, args)


app = CommandLine(
    cls=ImportCommands,
    no_args_is_help=True,
    help="Convert a trace, a table or a log of another tool to a profile, a graph or a steps document.",
)


Output = Annotated[Path, output_option("Write the profile to this file (JSON).", "--output", "-o")]
RecordedWorkers = Annotated[
    int | None,
    typer.Option(
        help="Number of workers that took part in the recording.",
        show_default="as recorded",
        min=1,
        max=MOST_WORKERS,
    ),
]
PlannedWorkers = Annotated[
    int, typer.Option(help="Number of workers that will train together.", min=1, max=MOST_WORKERS)
]
Name = Annotated[str | None, typer.Option(help="Name of the profile.", show_default="the file's name")]


@app.command(epilog="Example: pace import kineto rank0.json.gz rank1.json.gz -o profile.json")
def kineto(
    traces: Annotated[list[Path], file_argument("Traces (.json or .json.gz), one for each rank.")],
    output: Output,
    execution_trace: ExecutionTraceOption = None,
    workers: RecordedWorkers = None,
    cost: Cost = None,
    bandwidth_gbps: Bandwidth = None,
    latency_s: Latency = 0.0,
    clock: Annotated[
        TraceClock,
        typer.Option(
            help="Source of op durations: device (GPU kernels), host (CPU ops), hybrid (both), or auto (what "
            "the trace holds)."
        ),
    ] = "auto",
    parameters: ParametersOption = None,
    name: Name = None,
    as_json: JsonOption = False,
) -> None:
    """Convert PyTorch profiler traces (Kineto, Chrome format), one for each rank."""
    from pace.formats.kineto import read_kineto

    with reported():
        profile = read_kineto(
            traces,
            execution_trace=execution_trace,
            workers=workers,
            allreduce=given_cost(cost, bandwidth_gbps, latency_s),
            clock=clock,
            parameters=parameters,
            name=name,
        )
        write_profile(profile, output)
    _tell(profile, as_json=as_json)


@app.command("auto", epilog="Example: pace import auto rank0.json.gz rank1.json.gz -o profile.json")
def any_format(
    files: Annotated[
        list[Path],
        file_argument(
            "A file of any known tool, or the traces of all ranks, with an execution trace or a list "
            "of parameters."
        ),
    ],
    output: Output,
    workers: RecordedWorkers = None,
    cost: Cost = None,
    bandwidth_gbps: Bandwidth = None,
    latency_s: Latency = 0.0,
    name: Name = None,
    as_json: JsonOption = False,
) -> None:
    """Recognize the format of a file by its content, and convert it: `pace import FILE` does the same."""
    from pace.formats.any_format import read_any

    with reported():
        allreduce = given_cost(cost, bandwidth_gbps, latency_s)
        profile = read_any(files, workers=workers, allreduce=allreduce, name=name)
        write_profile(profile, output)
    _tell(profile, as_json=as_json)


def _tell(profile: Profile, *, as_json: bool) -> None:
    from pace.formats.import_report import import_report, report_lines

    report = import_report(profile)
    if as_json:
        typer.echo(json.dumps(report))
        return
    for line in report_lines(report):
        typer.echo(line)
    for warning in report["warnings"]:
        typer.echo(f"pace: warning: {warning}", err=True)


@app.command(
    "execution-trace",
    epilog="Example: pace import execution-trace trace.json --workers 8 --device-tflops 15 "
    "--bandwidth-gbps 10 -o profile.json",
)
def execution_trace(
    trace: Annotated[Path, file_argument("Execution trace of one rank (JSON).")],
    output: Output,
    device_tflops: Annotated[
        float, typer.Option(help="Compute rate that the device reaches, in TFLOP/s, for example 15.")
    ],
    workers: PlannedWorkers,
    memory_gbytes_per_s: Annotated[
        float | None,
        typer.Option(
            help="Memory bandwidth that the device reaches, in GB/s.",
            show_default="40 GB/s for each TFLOP/s",
        ),
    ] = None,
    cost: Cost = None,
    bandwidth_gbps: Bandwidth = None,
    latency_s: Latency = 0.0,
    name: Name = None,
) -> None:
    """Convert a PyTorch execution trace: durations are computed from shapes, not measured.

    Needs --cost or --bandwidth-gbps, because the trace has no cost of an all-reduce.
    """
    from pace.formats.shaped_steps import read_execution_trace_profile

    with reported():
        question_tflops(device_tflops)
        profile = read_execution_trace_profile(
            trace,
            device_tflops=device_tflops,
            workers=workers,
            allreduce=needed_cost(given_cost(cost, bandwidth_gbps, latency_s)),
            memory_gbytes_per_s=memory_gbytes_per_s,
            name=name,
        )
        write_profile(profile, output)


@app.command(epilog="Example: pace import chakra trace.et --workers 8 -o profile.json")
def chakra(
    trace: Annotated[Path, file_argument("Chakra execution trace of one rank (.et).")],
    output: Output,
    workers: Annotated[
        int,
        typer.Option(help="Number of workers that took part in the recording.", min=1, max=MOST_WORKERS),
    ],
    cost: Cost = None,
    bandwidth_gbps: Bandwidth = None,
    latency_s: Latency = 0.0,
    name: Name = None,
) -> None:
    """Convert a Chakra execution trace, as Chakra's converter writes it."""
    from pace.formats.chakra import read_chakra

    with reported():
        allreduce = given_cost(cost, bandwidth_gbps, latency_s)
        write_profile(read_chakra(trace, workers=workers, allreduce=allreduce, name=name), output)


@app.command("node-list", epilog="Example: pace import node-list nodes.json --times times.csv -o graph.json")
def node_list(
    nodes: Annotated[Path, file_argument("Node list (JSON), gzipped or not.")],
    output: Annotated[Path, output_option("Write the graph to this file (JSON).", "--output", "-o")],
    times: Annotated[
        list[Path] | None,
        file_option(
            "Table of measured times of collectives (text); repeat the option for several.",
            show_default="the node list's own times",
        ),
    ] = None,
    memory_gbytes_per_s: Annotated[
        float, typer.Option(help="Memory bandwidth of the device in GB/s, at which buckets are copied.")
    ] = 3350,
    name: Name = None,
) -> None:
    """Convert a list of a compiled program's nodes to a graph, which `pace optimize` plans."""
    from pace.formats.node_list import read_node_list, read_times

    with reported():
        if not memory_gbytes_per_s > 0:
            raise InvalidOptions(f"--memory-gbytes-per-s {memory_gbytes_per_s:g}: give a positive rate")
        tables = [read_times(path) for path in times or ()]
        rate = memory_gbytes_per_s * 1e9
        graph = read_node_list(nodes, times=tables, copy_bytes_per_s=rate, name=name)
        output.write_bytes(graph.to_json())
        sent = sum(node.collective is not None for node in graph.nodes)
        typer.echo(f"{output}: {counted(len(graph.nodes), 'node')}, {counted(sent, 'collective')}", err=True)


@app.command(epilog="Example: pace import layers layers.csv --workers 8 --bandwidth-gbps 10 -o profile.json")
def layers(
    table: Annotated[Path, file_argument("Table of layers: .csv, or graph.txt of PipeDream's profiler.")],
    output: Output,
    workers: PlannedWorkers,
    cost: Cost = None,
    bandwidth_gbps: Bandwidth = None,
    latency_s: Latency = 0.0,
    name: Name = None,
) -> None:
    """Convert a table of layers with times and sizes: CSV, or PipeDream's graph.txt.

    Needs --cost or --bandwidth-gbps, because the table has no cost of an all-reduce.
    """
    from pace.formats.layers import read_layer_csv
    from pace.formats.pipedream import read_pipedream

    with reported():
        allreduce = needed_cost(given_cost(cost, bandwidth_gbps, latency_s))
        is_csv = ".csv" in table.suffixes
        read = read_layer_csv if is_csv else read_pipedream
        write_profile(read(table, workers=workers, allreduce=allreduce, name=name), output)


@app.command("horovod-timeline", epilog="Example: pace import horovod-timeline timeline.json -o profile.json")
def horovod_timeline(
    timeline: Annotated[
        Path, file_argument("Timeline that HOROVOD_TIMELINE names (JSON); may be incomplete.")
    ],
    output: Output,
    workers: RecordedWorkers = None,
    name: Name = None,
) -> None:
    """Convert a Horovod timeline, or the readable part of an incomplete one."""
    from pace.formats.horovod_timeline import read_horovod_profile

    with reported():
        write_profile(read_horovod_profile(timeline, workers=workers, name=name), output)


def fit(
    logs: Annotated[list[Path], file_argument("Logs of all-reduces, all with the same number of workers.")],
    workers: RecordedWorkers = None,
    log_format: Annotated[
        str,
        typer.Option("--format", help="Format of the logs: auto, nccl-tests, osu, horovod-timeline or csv."),
    ] = "auto",
    output: Annotated[
        Path | None,
        output_option("Write the cost to this file (JSON).", "--output", "-o", show_default="not written"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit an all-reduce cost to logs of nccl-tests, OSU benchmarks or Horovod, or to a CSV file."""
    from pace.cost_warnings import cost_warnings
    from pace.formats.fit import fit_cost

    with reported():
        fitted = fit_cost(logs, workers=workers, format=log_format)
        document = fitted.allreduce.model_dump_json(indent=2, exclude={"counts", "deviations_s"})
        if output is not None:
            output.write_text(document + "\n")
    if as_json:
        typer.echo(document)
    for warning in cost_warnings(fitted.allreduce):
        typer.echo(f"pace: warning: {warning}", err=True)
    line = fitted.affine
    typer.echo(
        f"{counted(len(fitted.allreduce.samples), 'sample')} at "
        f"{counted(fitted.workers, 'worker')}; a straight line "
        f"({line.latency_s * 1e6:.1f} us + {line.seconds_per_byte * 1e9:.4g} ns per byte) would be wrong "
        f"by up to {fitted.affine_error * 100:.0f} %",
        err=True,
    )
