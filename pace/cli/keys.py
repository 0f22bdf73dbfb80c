"""``pace keys``: create, list and revoke API keys in the service's database."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from pace.errors import InvalidOptions
from pace.terminal.command_line import CommandLine
from pace.terminal.console import JsonOption
from pace.terminal.reporting import reported

if TYPE_CHECKING:
    from pace.api.storage.keys import ApiKey, KeyRing

app = CommandLine(help="Create, list and revoke API keys of the service.", no_args_is_help=True)

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        help="SQLAlchemy URL of the service's database, SQLite or PostgreSQL.",
        show_default="PACE_DATABASE_URL, or sqlite:///pace.db",
    ),
]


@app.command(epilog="Example: pace keys create team-vision --tenant vision --scope read --scope submit")
def create(
    name: Annotated[
        str, typer.Argument(help="Name of the key, for example of the person or job that uses it.")
    ],
    tenant: Annotated[
        str, typer.Option(help="Tenant of the key: keys of one tenant see the same data.")
    ] = "default",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="What the key may do: read, submit or admin; repeat the option for several.",
            show_default="read and submit",
        ),
    ] = None,
    expires_in_days: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=36_500,
            help="Days until the key becomes invalid.",
            show_default="the key never expires",
        ),
    ] = None,
    database_url: DatabaseUrl = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key and print its token. Keep the token: the database stores only a hash of it."""
    with reported():
        from pace.api.storage.keys import SCOPES

        scopes = [known for known in SCOPES if known in (scope or ["read", "submit"])]
        unknown = set(scope or ()) - set(SCOPES)
        if unknown:
            raise InvalidOptions(f"--scope {', '.join(sorted(unknown))}: expected read, submit or admin")
        _refuse_other_name("NAME", name, most=200)
        _refuse_other_name("--tenant", tenant, most=100)
    with _key_ring(database_url, new=True) as keys:
        ends = None if expires_in_days is None else datetime.now(UTC) + timedelta(days=expires_in_days)
        token = keys.create(tenant, name, scopes, ends)
        key_id = token.split("_")[1]
        _audit("key-created", tenant=tenant, new_key=key_id, scopes=" ".join(sorted(scopes)))
        shown = {"id": key_id, "tenant": tenant, "scopes": scopes, "token": token}
        try:
            typer.echo(json.dumps(shown) if as_json else token)
        except OSError:
            keys.revoke(key_id)  # nobody has seen its token
            _audit("key-revoked", revoked_key=key_id)
            raise


def _refuse_other_name(named: str, given: str, *, most: int) -> None:
    """Refuse a name that ``POST /v1/keys`` would refuse, too; raises InvalidOptions."""
    from pace.client.documents import JobName

    try:
        TypeAdapter(JobName).validate_python(given)
        valid = len(given) <= most
    except ValidationError:
        valid = False
    if not valid:
        raise InvalidOptions(f"{named}: expected 1 to {most} characters, none of them a control character")


@app.command("list", epilog="Example: pace keys list --database-url sqlite:///pace.db")
def list_keys(database_url: DatabaseUrl = None, as_json: JsonOption = False) -> None:
    """List all keys, including revoked ones, without their tokens."""
    with _key_ring(database_url) as keys:
        found = keys.list()
    if as_json:
        shown = [
            {
                "id": key.id,
                "tenant": key.tenant,
                "name": key.name,
                "scopes": sorted(key.scopes),
                "created_at": key.created_at.isoformat(),
                "revoked_at": None if key.revoked_at is None else key.revoked_at.isoformat(),
                "expires_at": None if key.expires_at is None else key.expires_at.isoformat(),
                "last_used_at": None if key.last_used_at is None else key.last_used_at.isoformat(),
            }
            for key in found
        ]
        lines = [json.dumps(shown)]
    else:
        lines = [
            f"{key.id}  {key.tenant}  {key.name}  {' '.join(sorted(key.scopes))}  {_state(key)}"
            for key in found
        ]
    if lines:
        with reported():
            typer.echo("\n".join(lines))  # at once, as the reader may stop after the first


def _state(key: "ApiKey") -> str:
    if key.revoked_at is not None:
        return f"revoked {key.revoked_at:%Y-%m-%d}"
    state = "valid"
    if key.expires_at is not None:
        passed = key.expires_at <= datetime.now(UTC)
        state = f"{'expired' if passed else 'valid until'} {key.expires_at:%Y-%m-%d}"
    return state if key.last_used_at is None else f"{state}, last used {key.last_used_at:%Y-%m-%d}"


@app.command(epilog="Example: pace keys revoke ID")
def revoke(
    key_id: Annotated[str, typer.Argument(help="Identifier of the key, as `pace keys list` prints it.")],
    database_url: DatabaseUrl = None,
) -> None:
    """Make a key invalid. Running services apply this within five seconds."""
    with _key_ring(database_url) as keys:
        if not (key_id.isascii() and keys.revoke(key_id)):
            typer.echo(
                f'pace keys: no valid key has the identifier "{key_id}": `pace keys list` prints all keys',
                err=True,
            )
            raise typer.Exit(1)
    _audit("key-revoked", revoked_key=key_id)


def _audit(action: str, **subject: str) -> None:
    """Write a line as of the service's audit log to stderr, with the user's number on this system."""
    line = {"event": action, "logger": "pace.audit", "level": "info", "uid": os.getuid(), **subject}
    typer.echo(json.dumps(line | {"timestamp": datetime.now(UTC).isoformat()}), err=True)


@contextmanager
def _key_ring(database_url: str | None, *, new: bool = False) -> "Iterator[KeyRing]":
    """Open the keys of a database. If `new`, create tables in an empty database.

    A database in use is never migrated here: the service does that when it starts.
    """
    # Imported here because the command line must start without SQLAlchemy.
    with reported():
        from sqlalchemy.exc import OperationalError

        from pace.api.logs import brief
        from pace.api.settings import load_settings
        from pace.api.storage.database import Database, is_missing
        from pace.api.storage.keys import KeyRing
        from pace.api.storage.migrations import has_tables, upgrade

        settings = load_settings() if database_url is None else load_settings(database_url=database_url)
        url = settings.parsed_database_url
        database = Database(url)
        try:
            if (not new and is_missing(url)) or not has_tables(database):
                if not new:
                    typer.echo(
                        f"pace keys: {url.render_as_string()} holds no keys: create one with `pace keys "
                        "create`, or give the right --database-url",
                        err=True,
                    )
                    raise typer.Exit(1)
                upgrade(database)
            yield KeyRing(database)
        except OperationalError as error:
            typer.echo(f"pace keys: {url.render_as_string()}: {brief(error)}", err=True)
            raise typer.Exit(3) from None
        finally:
            database.close()
