"""``pace check``: a schedule judged against its profile."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pace.cli.console import JsonOption, ProfileArgument
from pace.cli.reporting import WRONG, reported
from pace.documents.any_schedule import load_any_schedule
from pace.documents.profile import load_profile
from pace.errors import InvalidSchedule


def check(
    profile: ProfileArgument,
    schedule: Annotated[Path, typer.Argument(help="A schedule document.", exists=True, dir_okay=False)],
    as_json: JsonOption = False,
) -> None:
    """Check a schedule against its profile, independently of the solver; exit 1 and name every violation."""
    from pace.checker import check as judge

    with reported():
        loaded = load_profile(profile)
        try:
            violations = judge(loaded, load_any_schedule(schedule))
        except InvalidSchedule as error:
            violations = str(error).splitlines()
    if as_json:
        typer.echo(json.dumps({"valid": not violations, "violations": violations}))
    else:
        for violation in violations:
            typer.echo(violation)
        typer.echo(
            f"{schedule}: {'valid' if not violations else f'{len(violations)} violations'}",
            err=bool(violations),
        )
    if violations:
        raise typer.Exit(WRONG)
