"""``pace submit`` and ``pace serve``: the scheduling service asked, and run."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pace.cli.description import describe
from pace.documents.profile import load_profile
from pace.terminal.console import ApiKeyOption, JsonOption, ProfileArgument, make_console
from pace.terminal.reporting import reported


def submit(
    profile: ProfileArgument,
    service: Annotated[
        str, typer.Option(envvar="PACE_URL", help="Address of the service, such as http://127.0.0.1:8080.")
    ],
    job: Annotated[str | None, typer.Option(help="Name of the job; the profile's name if left out.")] = None,
    api_key: ApiKeyOption = None,
    timeout_s: Annotated[float, typer.Option(help="Seconds to wait for the answer.")] = 60.0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the schedule here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Send a profile to a service and print the schedule that it answers."""
    with reported():
        from pace.client import Client

        loaded = load_profile(profile)
        with Client(service, api_key=api_key, timeout_s=timeout_s) as client:
            schedule = client.create_schedule(loaded, job=job or loaded.name)
        if output is not None:
            output.write_bytes(schedule.to_json())
        if as_json:
            sys.stdout.buffer.write(schedule.to_json())
        else:
            describe(loaded, schedule, make_console())


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.")] = None,
    database_url: Annotated[str | None, typer.Option(help="SQLAlchemy URL of SQLite or PostgreSQL.")] = None,
) -> None:
    """Run the scheduling service until it is stopped."""
    with reported():
        from pace.api.serve import serve as run

        run(host=host, port=port, database_url=database_url)
