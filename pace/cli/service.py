"""``pace submit`` and ``pace serve``: ask the scheduling service, and run it."""

import sys
import unicodedata
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from pace.api.serve import DatabaseUrl, Host, Port
from pace.api.serve import serve as run_service
from pace.cli.description import describe
from pace.cli.graphs import MemoryOption, budget_bytes
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.errors import InvalidOptions
from pace.kinds import load_problem
from pace.terminal.console import (
    SERVICE,
    ApiKeyOption,
    JsonOption,
    ProfileOrGraphArgument,
    ScheduleOutput,
    TimeoutOption,
    make_console,
)
from pace.terminal.reporting import reported
from pace.terminal.service_connection import connect


def submit(
    profile: ProfileOrGraphArgument,
    service: Annotated[
        str,
        typer.Option(
            envvar="PACE_URL",
            help="Address of the PACE service, for example http://127.0.0.1:8080.",
            rich_help_panel=SERVICE,
        ),
    ],
    job: Annotated[
        str | None,
        typer.Option(
            help="Name of the job under which the service keeps the schedule; not for a graph.",
            show_default="the profile's name",
        ),
    ] = None,
    memory_gb: MemoryOption = None,
    api_key: ApiKeyOption = None,
    timeout_s: TimeoutOption = 60.0,
    output: ScheduleOutput = None,
    as_json: JsonOption = False,
) -> None:
    """Send a profile or a graph to a PACE service and print the schedule that it returns."""
    with reported():
        loaded = load_problem(profile)
        options = None
        if isinstance(loaded, Profile):
            job = _job_name(profile, loaded.name, job)
            if memory_gb is not None:
                raise InvalidOptions(f"--memory-gb is for graphs, and {profile} is a profile")
        else:
            if job is not None:
                raise InvalidOptions(f"--job is for profiles, and {profile} is a graph: leave it out")
            options = Options(memory_bytes=budget_bytes(memory_gb))
        with connect(service, api_key, timeout_s) as client:
            schedule = client.create_schedule(loaded, options, job=job)
        if output is not None:
            output.write_bytes(schedule.to_json())
        if as_json:
            sys.stdout.buffer.write(schedule.to_json())
        else:
            describe(loaded, schedule, make_console())


def _job_name(profile: Path, name: str, job: str | None) -> str:
    """Return the job's name, by default the profile's, in the Unicode form that the service takes."""
    from pace.client.documents import NewJobName

    try:
        named: str = TypeAdapter(NewJobName).validate_python(unicodedata.normalize("NFC", job or name))
    except ValidationError:
        what = "--job: expected" if job else f"{profile}: its name cannot be that of a job: give --job with"
        raise InvalidOptions(f"{what} 1 to 200 characters, none of them a control character") from None
    return named


def serve(host: Host = None, port: Port = None, database_url: DatabaseUrl = None) -> None:
    """Run the scheduling service until SIGTERM or Ctrl-C.

    All other settings are environment variables, whose names begin with PACE_.
    """
    with reported():
        run_service(host=host, port=port, database_url=database_url)
