"""``pace submit`` and ``pace serve``: the scheduling service asked, and run."""

import sys
from typing import Annotated

import typer

from pace.cli.description import describe
from pace.documents.profile import load_profile
from pace.terminal.console import ApiKeyOption, JsonOption, ProfileArgument, make_console
from pace.terminal.reporting import reported


def submit(
    profile: ProfileArgument,
    url: Annotated[str, typer.Option(help="Address of the service.")],
    job: Annotated[str | None, typer.Option(help="Name of the job; the profile's name if left out.")] = None,
    api_key: ApiKeyOption = None,
    timeout_s: Annotated[float, typer.Option(help="How long to wait for the answer.")] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Send a profile to a service and print the schedule that it answers."""
    with reported():
        from pace.client import Client

        loaded = load_profile(profile)
        with Client(url, api_key=api_key, timeout_s=timeout_s) as client:
            schedule = client.create_schedule(loaded, job=job or loaded.name)
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
