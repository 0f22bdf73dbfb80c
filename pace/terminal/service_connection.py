"""How a command reaches the scheduling service: a wrong address or a closed port is told within seconds."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

import typer

from pace.client.address import refuse_other_address
from pace.errors import ServiceUnavailable

if TYPE_CHECKING:
    from pace.client import Client

ClientT = TypeVar("ClientT", bound="Client")

# A service that starts at the same time listens within this time.
STARTS_WITHIN_S = 15.0


@overload
def connect(url: str, api_key: str | None, timeout_s: float) -> "AbstractContextManager[Client]": ...
@overload
def connect(
    url: str, api_key: str | None, timeout_s: float, kind: type[ClientT]
) -> AbstractContextManager[ClientT]: ...
@contextmanager
def connect(url: str, api_key: str | None, timeout_s: float, kind: Any = None) -> Iterator[Any]:
    """Yield a client of the service at this address, once the service answers.

    Parameters
    ----------
    url
        Address, such as ``http://127.0.0.1:8080``.
    timeout_s
        Seconds that one method of the client may take. Whether a service is there is tried for at most
        15 seconds of it.
    kind
        Class of the client, where a pack has its own.

    Raises
    ------
    InvalidOptions
        If the address is no HTTP address or the time-out is not a positive number.
    ServiceUnavailable
        If no service answers.
    """
    from pace.client import Client

    refuse_other_address("--service", url, key="--api-key or PACE_API_KEY")
    wait_s = min(timeout_s, STARTS_WITHIN_S)
    deadline = time.monotonic() + wait_s
    with (
        (kind or Client)(url, api_key=api_key, timeout_s=timeout_s) as asking,
        Client(url, timeout_s=wait_s) as client,
    ):
        told = False
        while not client.healthy():
            if time.monotonic() >= deadline:
                raise ServiceUnavailable(f"--service {url}: no PACE service answers at this address")
            if not told:
                typer.echo(f"pace: {url} does not answer yet; trying for {wait_s:g} s", err=True)
                told = True
            time.sleep(min(0.5, max(deadline - time.monotonic(), 0.0)))
        yield asking
