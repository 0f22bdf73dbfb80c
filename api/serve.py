"""Runs the service in this process: ``pace serve`` and ``python -m pace.api.serve``."""

import signal
import socket
import sys
from typing import Annotated

import typer

Host = Annotated[
    str | None, typer.Option(help="Address to listen on.", show_default="PACE_HOST, or 127.0.0.1")
]
Port = Annotated[
    int | None,
    typer.Option(help="Port to listen on; 0 takes a free port.", show_default="PACE_PORT, or 8080"),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        help="SQLAlchemy URL of the database, SQLite or PostgreSQL.",
        show_default="PACE_DATABASE_URL, or sqlite:///pace.db",
    ),
]


def serve(host: Host = None, port: Port = None, database_url: DatabaseUrl = None) -> None:
    """Run the scheduling service until SIGTERM or Ctrl-C.

    Options that are not given come from the environment (PACE_HOST, PACE_PORT, PACE_DATABASE_URL
    and the other settings), then from the defaults.
    """
    # Imported here because worker processes import this module again if it is the main module.
    import structlog
    import uvicorn

    from pace.api.http.app import create_app
    from pace.api.http.server import (
        ACCEPTED_TOGETHER,
        MOST_WAITING,
        StoppingServer,
        make_protocol,
        raise_descriptor_limit,
    )
    from pace.api.logs import set_up_logs
    from pace.api.settings import load_settings, unknown_settings
    from pace.api.workers.fork_server import start_fork_server
    from pace.errors import InvalidOptions

    given = {"host": host, "port": port, "database_url": database_url}
    try:
        settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    except InvalidOptions as error:
        for line in str(error).splitlines():
            typer.echo(f"pace serve: {line}", err=True)
        raise typer.Exit(2) from None
    start_fork_server()
    set_up_logs()
    # Database threads compute, too: switch threads after 1 ms instead of 5 ms, so that the event loop runs
    # sooner.
    sys.setswitchinterval(1e-3)
    for name in unknown_settings():
        structlog.get_logger(__name__).warning("unknown-setting", name=name)
    listener = _listen(settings.host, settings.port, MOST_WAITING)
    bound_host, bound_port = listener.getsockname()[:2]
    shown_host = f"[{bound_host}]" if ":" in bound_host else bound_host
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies or None,
        timeout_graceful_shutdown=settings.drain_s,  # type: ignore[arg-type]  # only waited for
        http=make_protocol(
            settings.header_timeout_s,
            settings.answer_timeout_s,
            raise_descriptor_limit(),
            app.answer_at_once,
            app.note_slow_reader,
        ),
        lifespan="on",
        backlog=ACCEPTED_TOGETHER,
    )
    structlog.get_logger(__name__).info(
        "listening",
        url=f"http://{shown_host}:{bound_port}",
        database=settings.parsed_database_url.render_as_string(hide_password=True),
    )
    server = StoppingServer(config)
    # uvicorn raises SIGTERM again after it has stopped; a requested stop is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.run(sockets=[listener])
    if not server.started or server.service_failed:
        raise typer.Exit(3)


def _listen(host: str, port: int, most_waiting: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        reason = (
            error.strerror
            if isinstance(error, OSError)
            else "no host name: give a name or an address of this machine"
        )
        typer.echo(f"pace serve: cannot listen on {host}:{port}: {reason}", err=True)
        raise typer.Exit(3) from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        typer.echo(f"pace serve: cannot listen on {host}:{port}: {error.strerror}", err=True)
        raise typer.Exit(3) from None
    listener.listen(most_waiting)
    return listener


if __name__ == "__main__":
    typer.run(serve)
