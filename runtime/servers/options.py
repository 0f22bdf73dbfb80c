"""What users may say about parameter servers: how consistent, where they are, and who may call them."""

import fnmatch
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from pace.errors import InvalidOptions
from pace.wire.addresses import is_loopback
from pace.wire.addresses import parse_address as parse_address
from pace.wire.addresses import read_token as read_token


@dataclass(frozen=True, slots=True)
class Stale:
    """Bounded staleness: no worker computes while it is more than `clocks` steps ahead of the slowest.

    ``Stale(0)`` is bulk-synchronous.
    """

    clocks: int

    def __post_init__(self) -> None:
        """Refuse what is no count.

        Raises
        ------
        InvalidOptions
            When `clocks` is no whole number of at least 0.
        """
        if type(self.clocks) is not int or not 0 <= self.clocks < 1 << 31:
            raise InvalidOptions(f"Stale({self.clocks!r}): a whole number of at least 0 is needed")


Servers = Literal["colocated"] | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How to reach parameter servers, checked.

    Attributes
    ----------
    servers
        "colocated", or HOST:PORT of each.
    token
        What workers and servers must both know.
    deterministic
        Whether sums are added in the order of ranks.
    pacing_bytes_per_s
        How fast either end of a connection sends; infinite for no limit, None for what a plan says.
    ssl_context
        TLS of the connections; None for connections in the clear.
    pushed
        Which gradients go over the servers; None for all.
    """

    servers: Literal["colocated"] | tuple[str, ...]
    token: str | None = None
    deterministic: bool = False
    pacing_bytes_per_s: float | None = None
    ssl_context: ssl.SSLContext | None = None
    pushed: frozenset[str] | None = None

    @property
    def shown(self) -> dict[str, Any]:
        """What must be equal on all ranks."""
        return {
            "servers": self.servers if self.servers == "colocated" else list(self.servers),
            "deterministic": self.deterministic,
            "pacing_bytes_per_s": self.pacing_bytes_per_s,
            "TLS": self.ssl_context is not None,
            "pushed": None if self.pushed is None else sorted(self.pushed),
        }


def read_options(
    servers: Any,
    token: Any,
    *,
    deterministic: Any = False,
    pacing_bytes_per_s: Any = None,
    ssl_context: Any = None,
    pushed: frozenset[str] | None = None,
) -> ServerOptions:
    """Check what the user gave, and take from the environment what is missing.

    PACE_SERVERS names servers, separated by commas, or is "colocated"; PACE_SERVERS_TOKEN is the token.

    Raises
    ------
    InvalidOptions
        Names the argument and what is allowed. Tokens are never shown.
    """
    if servers is None:
        found = os.environ.get("PACE_SERVERS") or "colocated"
        servers = found if found == "colocated" else found.split(",")
    if servers != "colocated":
        if isinstance(servers, str) or not isinstance(servers, Sequence) or not servers:
            raise InvalidOptions(f"servers is {servers!r}; 'colocated' or a list of HOST:PORT is needed")
        servers = tuple(servers)
        for place in servers:
            parse_address(place, "")
    token = os.environ.get("PACE_SERVERS_TOKEN") or None if token is None else token
    if token is not None and (not isinstance(token, str) or not token):
        raise InvalidOptions(f"token is of type {type(token).__name__}; a text that is not empty is needed")
    if token is None and servers != "colocated":
        for place in servers:
            if not is_loopback(parse_address(place, "").host):
                raise InvalidOptions(
                    f"the server {place} is on another machine: give a token, or set PACE_SERVERS_TOKEN"
                )
    if not isinstance(deterministic, bool):
        raise InvalidOptions(f"deterministic is {deterministic!r}; True or False is needed")
    rate = pacing_bytes_per_s
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or rate <= 0):
        raise InvalidOptions(f"pacing_bytes_per_s is {rate!r}; a positive number is needed")
    if ssl_context is not None and not isinstance(ssl_context, ssl.SSLContext):
        raise InvalidOptions(
            f"ssl_context is of type {type(ssl_context).__name__}; an ssl.SSLContext is needed"
        )
    if ssl_context is not None and servers == "colocated":
        raise InvalidOptions("ssl_context is for servers of their own: colocated ones have no certificate")
    return ServerOptions(
        servers=servers,
        token=token,
        deterministic=deterministic,
        pacing_bytes_per_s=None if rate is None else float(rate),
        ssl_context=ssl_context,
        pushed=pushed,
    )


def pushed_gradients(model: nn.Module, patterns: Any) -> frozenset[str]:
    """Return which of a model's gradients go over parameter servers where the others are all-reduced.

    Parameters
    ----------
    patterns
        Names or patterns of the shell's kind, as in "embedding.*"; None for the weights of all embeddings.

    Raises
    ------
    InvalidOptions
        When they are no texts, or one matches no gradient.
    """
    named = {name.replace("_orig_mod.", ""): parameter for name, parameter in model.named_parameters()}
    if patterns is None:
        tables = {
            module.weight for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        }
        found = frozenset(name for name, parameter in named.items() if parameter in tables)
        if not found:
            raise InvalidOptions(
                "backend is 'mixed' and the model has no embedding: say in pushed= what to push"
            )
        return found
    if isinstance(patterns, str) or not isinstance(patterns, Sequence) or not patterns:
        raise InvalidOptions(f"pushed is {patterns!r}; a list of gradients' names is needed")
    matched: set[str] = set()
    for pattern in patterns:
        if not isinstance(pattern, str) or not (mine := fnmatch.filter(named, pattern)):
            raise InvalidOptions(f"pushed has {pattern!r}: the model has no such gradient")
        matched.update(mine)
    return frozenset(matched)


def own_host(token: str | None) -> str:
    """Return the address under which other ranks reach a server of this process.

    PACE_SERVERS_HOST says it. Without a token it is this machine alone.
    """
    named = os.environ.get("PACE_SERVERS_HOST")
    if named:
        return named
    master = os.environ.get("MASTER_ADDR")
    if not token or not master:
        return "127.0.0.1"
    family, _, _, _, where = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # sends nothing, but chooses the interface
        host: str = probe.getsockname()[0]
        return host
