"""What commands that run until they are stopped share: where they listen, TLS, signals."""

import signal
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from pace.errors import CommunicationFailed, InvalidOptions

_POLL_S = 0.2
Bind = Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one.")]
Certificate = Annotated[
    Path | None, typer.Option(help="Certificate chain (PEM).", exists=True, dir_okay=False)
]
CertificateKey = Annotated[
    Path | None, typer.Option(help="Its key (PEM), if not in the same file.", exists=True, dir_okay=False)
]
Authority = Annotated[
    Path | None,
    typer.Option(help="Whom to trust (PEM), where processes use TLS.", exists=True, dir_okay=False),
]


def place_of(text: str, option: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT, of which the port may be 0."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) >= 1 << 16:
        raise InvalidOptions(f"{option} {text!r}: HOST:PORT is needed")
    return host.strip("[]"), int(port)


def serving_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return TLS for accepting callers; None without a certificate."""
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise InvalidOptions(f"{certificate}: no certificate with its key: {error}") from error
    return context


def trusting_context(authority: Path | None) -> ssl.SSLContext | None:
    """Return TLS for calling others; None without an authority."""
    return None if authority is None else ssl.create_default_context(cafile=str(authority))


def stop_event() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set from now on."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


def until_stopped(address: str, refusal: Callable[[], str | None] = lambda: None) -> None:
    """Say where the process listens, and wait for SIGTERM or SIGINT.

    Parameters
    ----------
    refusal
        Says why the process may not go on; looked at from time to time.

    Raises
    ------
    CommunicationFailed
        When there is such a reason.
    """
    stopped = stop_event()
    typer.echo(f"listening on {address}", err=True)
    while not stopped.wait(_POLL_S):
        reason = refusal()
        if reason is not None:
            raise CommunicationFailed(f"the scheduler refuses this host: {reason}")
