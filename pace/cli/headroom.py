"""``pace headroom``: how much faster a job could train, from its trace or its profile."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pace.documents.profile import Profile, load_profile
from pace.terminal.console import ExecutionTraceOption, HtmlOption, JsonOption, ParametersOption
from pace.terminal.reporting import reported, tell_slowdown

_SNIFFED_BYTES = 1 << 16


def headroom(
    source: Annotated[
        list[Path],
        typer.Argument(
            help="A profile (JSON), or PyTorch profiler traces (.json or .json.gz), one for each rank.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ],
    clip: Annotated[
        bool,
        typer.Option("--clip", help="Estimate also for training that clips gradients by their global norm."),
    ] = False,
    execution_trace: ExecutionTraceOption = None,
    parameters: ParametersOption = None,
    workers: Annotated[
        int | None, typer.Option(help="Number of workers in the trace.", show_default="as recorded")
    ] = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate how much faster a job could train: with better DDP buckets, with PACE, and at best.

    Also shows where the time of an iteration goes, and what to do next.
    """
    from pace.formats.import_report import import_warnings
    from pace.view.headroom_page import headroom_page, text_lines
    from pace.whatif.headroom import headroom as answer

    with reported():
        profile = _profile_of(source, execution_trace, parameters, workers)
        tell_slowdown(profile)
        made = answer(profile, clip=clip, warnings=tuple(import_warnings(profile)))
        if html is not None:
            html.write_text(headroom_page(made), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(made.to_document()))
        return

    for line in text_lines(made):
        typer.echo(line)


def _profile_of(
    source: list[Path], execution_trace: Path | None, parameters: Path | None, workers: int | None
) -> Profile:
    from pace.formats.kineto import read_kineto
    from pace.formats.reading import open_binary

    if len(source) == 1:
        with open_binary(source[0]) as file:
            head = file.read(_SNIFFED_BYTES)
        if b'"schema_version"' in head and b'"traceEvents"' not in head:
            return load_profile(source[0])
    return read_kineto(source, execution_trace=execution_trace, parameters=parameters, workers=workers)
