"""``pace import`` and ``pace fit``: profiles and costs from what other tools wrote."""

import json
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from pace.documents.base import explain
from pace.documents.collective_costs import AllReduce, RingAllReduce
from pace.documents.throughput.steps import StepsDocument
from pace.errors import InvalidOptions
from pace.formats.kineto_clocks import TraceClock
from pace.terminal.console import JsonOption, question_tflops, write_profile
from pace.terminal.reporting import reported

app = typer.Typer(no_args_is_help=True, help="Make a profile from what another tool recorded.")


Source = Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True)]
Sources = Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, readable=True)]
Output = Annotated[Path, typer.Option("--output", "-o", help="Write the profile here.")]
Workers = Annotated[int | None, typer.Option(help="How many workers took part, where the file does not say.")]
Name = Annotated[str | None, typer.Option(help="The profile's name; from the file's by default.")]
Cost = Annotated[Path | None, typer.Option(exists=True, help="All-reduce cost, as `pace fit -o` writes it.")]
Bandwidth = Annotated[float | None, typer.Option(help="Or a ring at this bandwidth.")]
Latency = Annotated[float, typer.Option(help="Latency of one message of that ring, in seconds.")]


@app.command()
def kineto(
    traces: Sources,
    output: Output,
    execution_trace: Annotated[Path | None, typer.Option(exists=True, help="Sizes of gradients.")] = None,
    workers: Workers = None,
    cost: Cost = None,
    bandwidth_gbps: Bandwidth = None,
    latency_s: Latency = 0.0,
    clock: Annotated[TraceClock, typer.Option(help="Whose durations count.")] = "auto",
    parameters: Annotated[
        Path | None, typer.Option(exists=True, help="Shapes of the parameters, for traces without shapes.")
    ] = None,
    name: Name = None,
    as_json: JsonOption = False,
) -> None:
    """Kineto (PyTorch profiler) Chrome traces, one for each rank; gzip is fine."""
    from pace.formats.import_report import import_report, report_lines
    from pace.formats.kineto import read_kineto

    with reported():
        profile = read_kineto(
            traces,
            execution_trace=execution_trace,
            workers=workers,
            allreduce=_cost(cost, bandwidth_gbps, latency_s),
            clock=clock,
            parameters=parameters,
            name=name,
        )
        write_profile(profile, output)
        report = import_report(profile)
    if as_json:
        typer.echo(json.dumps(report))
        return
    for line in report_lines(report):
        typer.echo(line)
    for warning in report["warnings"]:
        typer.echo(f"pace: warning: {warning}", err=True)


@app.command("execution-trace")
def execution_trace(
    trace: Source,
    output: Output,
    device_tflops: Annotated[float, typer.Option(help="Rate of the device in TFLOP/s.")],
    workers: Annotated[int, typer.Option(help="How many workers will train.")],
    memory_gbytes_per_s: Annotated[float | None, typer.Option(help="Rate of the device's memory.")] = None,
    cost: Cost = None,
    bandwidth_gbps: Bandwidth = None,
    latency_s: Latency = 0.0,
    name: Name = None,
) -> None:
    """A PyTorch execution trace: shapes are read, durations are computed."""
    from pace.formats.shaped_steps import read_execution_trace_profile

    with reported():
        question_tflops(device_tflops)
        profile = read_execution_trace_profile(
            trace,
            device_tflops=device_tflops,
            workers=workers,
            allreduce=_needed(_cost(cost, bandwidth_gbps, latency_s)),
            memory_gbytes_per_s=memory_gbytes_per_s,
            name=name,
        )
        write_profile(profile, output)


@app.command()
def chakra(
    trace: Source,
    output: Output,
    workers: Annotated[int, typer.Option(help="How many workers took part.")],
    cost: Cost = None,
    bandwidth_gbps: Bandwidth = None,
    latency_s: Latency = 0.0,
    name: Name = None,
) -> None:
    """A Chakra execution trace, as its converter writes it."""
    from pace.formats.chakra import read_chakra

    with reported():
        allreduce = _cost(cost, bandwidth_gbps, latency_s)
        write_profile(read_chakra(trace, workers=workers, allreduce=allreduce, name=name), output)


@app.command()
def layers(
    table: Source,
    output: Output,
    workers: Annotated[int, typer.Option(help="How many workers will train.")],
    cost: Cost = None,
    bandwidth_gbps: Bandwidth = None,
    latency_s: Latency = 0.0,
    name: Name = None,
) -> None:
    """A table of layers: CSV (by its name's ending) or PipeDream's graph.txt."""
    from pace.formats.layers import read_layer_csv
    from pace.formats.pipedream import read_pipedream

    with reported():
        allreduce = _needed(_cost(cost, bandwidth_gbps, latency_s))
        is_csv = ".csv" in table.suffixes
        read = read_layer_csv if is_csv else read_pipedream
        write_profile(read(table, workers=workers, allreduce=allreduce, name=name), output)


@app.command("horovod-timeline")
def horovod_timeline(timeline: Source, output: Output, workers: Workers = None, name: Name = None) -> None:
    """A Horovod timeline; one that breaks off is read as far as it goes."""
    from pace.formats.horovod_timeline import read_horovod_profile

    with reported():
        write_profile(read_horovod_profile(timeline, workers=workers, name=name), output)


@app.command("tf-run-metadata")
def tf_run_metadata(
    files: Sources,
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the steps document here.")],
    bandwidth_gbps: Annotated[float | None, typer.Option(help="Measured rate of the link.")] = None,
    batch: Annotated[float, typer.Option(help="Examples in a step.")] = 1.0,
    name: Annotated[str | None, typer.Option(help="The document's name.")] = None,
) -> None:
    """TensorFlow's RunMetadata of traced steps with parameter servers, as JSON."""
    from pace.formats.tf_run_metadata import read_tf_run_metadata

    with reported():
        rate = None if bandwidth_gbps is None else _rate(bandwidth_gbps)
        document = read_tf_run_metadata(files, bytes_per_s=rate, batch=batch, name=name)
        _write_steps(document, output, f", {document.metadata['steps_dropped']} dropped")


@app.command("profile")
def profile_steps(
    profile: Source,
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the steps document here.")],
    bandwidth_gbps: Annotated[float, typer.Option(help="Rate of the links.")],
    servers: Annotated[int, typer.Option(help="How many servers hold the parameters.")] = 1,
    batch: Annotated[float, typer.Option(help="Examples in a step.")] = 1.0,
    steps: Annotated[int, typer.Option(help="How many steps to draw.")] = 1,
    jitter: Annotated[float, typer.Option(help="Relative deviation of ops that have none.")] = 0.0,
) -> None:
    """An all-reduce profile, as steps of training with parameter servers."""
    from pace.documents.profile import load_profile
    from pace.throughput import steps_from_profile

    with reported():
        document = steps_from_profile(
            load_profile(profile),
            bytes_per_s=_rate(bandwidth_gbps),
            servers=servers,
            batch=batch,
            count=steps,
            jitter=jitter,
        )
        _write_steps(document, output)


def _write_steps(document: StepsDocument, output: Path, note: str = "") -> None:
    output.write_bytes(document.to_json())
    typer.echo(f"{output}: {len(document.ops)} ops, {len(document.steps)} steps{note}", err=True)


def _rate(gbps: float) -> float:
    if not 0 < gbps < float("inf"):
        raise InvalidOptions(f"a link of {gbps} Gb/s: expected a positive number")
    return gbps * 1e9 / 8


def fit(
    logs: Sources,
    workers: Workers = None,
    log_format: Annotated[str, typer.Option("--format", help="auto, nccl-tests, osu, ...")] = "auto",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the cost here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")] = False,
) -> None:
    """Fit an all-reduce cost to logs of nccl-tests, OSU, Horovod's timeline or CSV."""
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
        f"{len(fitted.allreduce.samples)} samples at {fitted.workers} workers; one line "
        f"({line.latency_s * 1e6:.1f} us + {line.seconds_per_byte * 1e9:.4g} ns a byte) would be wrong "
        f"by up to {fitted.affine_error * 100:.0f} %",
        err=True,
    )


def _needed(allreduce: AllReduce | None) -> AllReduce:
    if allreduce is None:
        raise InvalidOptions("the file holds no all-reduce cost: give --cost or --bandwidth-gbps")
    return allreduce


def _cost(path: Path | None, bandwidth_gbps: float | None, latency_s: float) -> AllReduce | None:
    if path is not None and bandwidth_gbps is not None:
        raise InvalidOptions("--cost and --bandwidth-gbps are two answers to one question: give one")
    if path is not None:
        adapter: TypeAdapter[AllReduce] = TypeAdapter(AllReduce)
        content = path.read_bytes()
        if b'"ops"' in content and b'"gradients"' in content:
            raise InvalidOptions(
                f"{path} is a profile, and --cost wants a cost as `pace fit -o` writes it: give "
                'what stands under the profile\'s "allreduce"'
            )
        try:
            return adapter.validate_json(content)
        except ValidationError as error:
            raise InvalidOptions(f"{path}: {explain(error)}") from None
    if bandwidth_gbps is not None:
        if not 0 < bandwidth_gbps < float("inf") or not 0 <= latency_s < float("inf"):
            raise InvalidOptions(
                f"a ring of {bandwidth_gbps} Gb/s and {latency_s} s: expected positive numbers"
            )
        return RingAllReduce(bandwidth_bytes_per_s=bandwidth_gbps * 1e9 / 8, latency_s=latency_s)
    return None
