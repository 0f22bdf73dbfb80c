"""What commands that run until they are stopped share: the address, TLS and signals."""

import signal
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from pace.errors import CommunicationFailed, InvalidOptions
from pace.terminal.command_line import file_option

_POLL_S = 0.2
TLS = "TLS"

Bind = Annotated[str, typer.Option(help="HOST:PORT to listen on; port 0 takes a free port.")]
Certificate = Annotated[
    Path | None,
    file_option("Certificate chain of this process (PEM file).", show_default="no TLS", rich_help_panel=TLS),
]
CertificateKey = Annotated[
    Path | None,
    file_option(
        "Private key of the certificate (PEM file).",
        show_default="in the file of --tls-cert",
        rich_help_panel=TLS,
    ),
]
Authority = Annotated[
    Path | None,
    file_option(
        "Certificate authority of the other processes' certificates (PEM file).",
        show_default="no TLS",
        rich_help_panel=TLS,
    ),
]


def place_of(text: str, option: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT, of which the port may be 0."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) >= 1 << 16:
        raise InvalidOptions(
            f"{option} {text!r}: expected HOST:PORT with a port below 65536, for example 127.0.0.1:7070"
        )
    return host.strip("[]"), int(port)


def serving_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context for incoming connections; None without a certificate."""
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise InvalidOptions(
            f"--tls-cert {certificate}: expected a PEM certificate with its private key: {error}"
        ) from error
    return context


def trusting_context(authority: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context for outgoing connections; None without an authority."""
    return None if authority is None else ssl.create_default_context(cafile=str(authority))


def stop_event() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set from now on."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


def until_stopped(address: str, refusal: Callable[[], str | None] = lambda: None) -> None:
    """Print where the process listens, and wait for SIGTERM or SIGINT.

    Parameters
    ----------
    refusal
        Called several times a second; returns why the process must end, or None.

    Raises
    ------
    CommunicationFailed
        If `refusal` returns a reason.
    """
    stopped = stop_event()
    typer.echo(f"listening on {address}", err=True)
    while not stopped.wait(_POLL_S):
        reason = refusal()
        if reason is not None:
            raise CommunicationFailed(f"the scheduler refused this host: {reason}")
