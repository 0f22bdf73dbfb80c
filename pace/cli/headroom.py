"""``pace headroom``: what a job could gain, from its trace or its profile."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pace.documents.profile import Profile, load_profile
from pace.terminal.console import JsonOption
from pace.terminal.reporting import reported, tell_slowdown, warn_if_misleading

_SNIFFED_BYTES = 1 << 16


def headroom(
    source: Annotated[
        list[Path],
        typer.Argument(
            help="A profile, or Kineto traces, one for each rank.", exists=True, dir_okay=False, readable=True
        ),
    ],
    clip: Annotated[bool, typer.Option("--clip", help="Also with clipping by the global norm.")] = False,
    execution_trace: Annotated[Path | None, typer.Option(exists=True, help="Sizes of gradients.")] = None,
    parameters: Annotated[Path | None, typer.Option(exists=True, help="Shapes of the parameters.")] = None,
    workers: Annotated[int | None, typer.Option(help="How many workers, if a trace does not say.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what better buckets, PACE and any schedule at all could gain, and where the time goes."""
    from pace.formats.import_report import import_warnings
    from pace.view.headroom_page import headroom_page, text_lines
    from pace.whatif.headroom import headroom as answer

    with reported():
        profile = _profile_of(source, execution_trace, parameters, workers)
        warn_if_misleading(profile)
        tell_slowdown(profile)
        made = answer(profile, clip=clip, warnings=tuple(import_warnings(profile)))
        if html is not None:
            html.write_text(headroom_page(made), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(made.to_document()))
        return

    for line in text_lines(made):
        typer.echo(line)
    for warning in made.warnings:
        typer.echo(f"pace: warning: {warning}", err=True)


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
