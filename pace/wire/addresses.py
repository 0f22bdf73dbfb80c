"""Where servers listen, who can reach them, and the token that callers must know."""

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from pace.errors import InvalidOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where a server listens.

    Attributes
    ----------
    name
        What messages call it.
    """

    host: str
    port: int
    name: str


def read_token(file: Path | None, variable: str = "PACE_SERVERS_TOKEN") -> str | None:
    """Return the token in a file, or the one in an environment variable; None where there is neither.

    Raises
    ------
    InvalidOptions
        When the file holds none.
    """
    if file is None:
        return os.environ.get(variable) or None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptions(f"{file}: the token cannot be read: {error}") from error
    if not token:
        raise InvalidOptions(f"{file}: there is no token in it")
    return token


def parse_address(place: object, name: str) -> ServerAddress:
    """Read HOST:PORT, or [HOST]:PORT for IPv6.

    Raises
    ------
    InvalidOptions
        When it is none.
    """
    host, colon, port = place.rpartition(":") if isinstance(place, str) else ("", "", "")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise InvalidOptions(f"server {place!r}: HOST:PORT is needed, as in 10.0.0.5:7070")
    return ServerAddress(host=host.strip("[]"), port=int(port), name=name)


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
