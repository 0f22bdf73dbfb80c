"""Options of training with parameter servers; ``complete_servers`` reads the environment."""

import fnmatch
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch import nn
from torch.distributed import ProcessGroup

from pace.errors import InvalidOptions
from pace.runtime.argument_checks import (
    is_number,
    refusal,
    require_bool,
    require_instance,
    require_one_of,
    require_text,
)
from pace.runtime.options import Communication, Plan, Tune
from pace.runtime.transports.compression import Compression
from pace.runtime.transports.device import device_of
from pace.wire.addresses import is_loopback, parse_address
from pace.wire.streams import NOTSENT_BYTES

if TYPE_CHECKING:
    from pace_servers.runtime.push_pull import PushPullTransport


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterServers(Communication):
    """Ranks push gradients to servers, which sum them, and pull the sums.

    Attributes
    ----------
    servers
        Servers to use: "colocated" (one in every rank), or HOST:PORT of every `pace servers serve`. Default:
        PACE_SERVERS (separated by commas), else "colocated".
    token
        Secret that ranks and servers share; needed beyond one machine. Default: PACE_SERVERS_TOKEN.
    host
        Address under which other ranks reach this rank's colocated server. Default: PACE_SERVERS_HOST, else
        127.0.0.1, or with a token the address that reaches MASTER_ADDR.
    deterministic
        Whether servers add in the order of ranks, so that repeated runs have equal bits. Servers then keep a
        copy of each rank's gradients.
    pacing_bytes_per_s
        Rate in bytes/s at which each end of a connection sends; `math.inf`: no limit. Default: the
        schedule's.
    ssl_context
        TLS for connections to servers that are not colocated.
    compression
        Type on the wire: "fp16", "bf16", or "none" for the gradients' own. Servers sum in float32.
    """

    servers: Literal["colocated"] | Sequence[str] | None = None
    token: str | None = field(default=None, repr=False)
    host: str | None = None
    deterministic: bool = False
    pacing_bytes_per_s: float | None = None
    ssl_context: ssl.SSLContext | None = None
    compression: Compression = "none"

    def __post_init__(self) -> None:
        """Refuse values that are not allowed, or contradict one another."""
        if self.servers is not None and self.servers != "colocated":
            if isinstance(self.servers, str) or not isinstance(self.servers, Sequence) or not self.servers:
                raise refusal("servers", self.servers, "'colocated' or a list of HOST:PORT")
            for place in self.servers:
                parse_address(place, "")
        for name in ("token", "host"):
            value = getattr(self, name)
            if value is not None:
                require_text(name, value, secret=name == "token")
        require_bool("deterministic", self.deterministic)
        rate = self.pacing_bytes_per_s
        if rate is not None and not (is_number(rate) and rate > 0):
            raise refusal("pacing_bytes_per_s", rate, "a positive number")
        if self.ssl_context is not None:
            require_instance("ssl_context", self.ssl_context, ssl.SSLContext, "an ssl.SSLContext")
            if self.servers == "colocated":
                raise InvalidOptions(
                    "ssl_context needs servers=[HOST:PORT, ...]: colocated servers have no certificate"
                )
        require_one_of("compression", self.compression, get_args(Compression))

    @property
    def shown(self) -> dict[str, Any]:
        """What must be equal on all ranks."""
        return {
            "servers": self.servers if isinstance(self.servers, str) else list(self.servers or ()),
            "deterministic": self.deterministic,
            "pacing_bytes_per_s": self.pacing_bytes_per_s,
            "TLS": self.ssl_context is not None,
        }

    def connect(
        self, model: nn.Module, plan: Plan | Tune | None, timeout_s: float, process_group: ProcessGroup | None
    ) -> "PushPullTransport":
        """Start this rank's server if it is colocated, and link up with all servers."""
        from pace_servers.runtime.push_pull import MixedTransport, PushPullTransport

        credit = plan.credit_bytes if isinstance(plan, Plan) else None
        kind = MixedTransport if isinstance(self, Mixed) else PushPullTransport
        return kind(
            partial(complete_servers, self, model),
            timeout_s=timeout_s,
            process_group=process_group,
            notsent_bytes=max(credit, 1) if credit is not None and credit < 1 << 31 else NOTSENT_BYTES,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed(ParameterServers):
    """Parameter servers sum some gradients, and ranks all-reduce the others.

    Attributes
    ----------
    pushed
        Gradients that servers sum: names, or patterns such as "embed.*". Default: the weights of every
        `nn.Embedding` and `nn.EmbeddingBag`.
    """

    pushed: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Refuse values that are not allowed."""
        ParameterServers.__post_init__(self)
        names = self.pushed
        if names is not None and (isinstance(names, str) or not isinstance(names, Sequence) or not names):
            raise refusal("pushed", names, "a list of gradients' names")

    @property
    def shown(self) -> dict[str, Any]:
        """What must be equal on all ranks."""
        return super(Mixed, self).shown | {"pushed": sorted(self.pushed or ())}


COMMUNICATIONS = (ParameterServers, Mixed)


def complete_servers(given: ParameterServers, model: nn.Module | None = None) -> ParameterServers:
    """Add missing values from the environment, and the names of gradients that are pushed.

    PACE_SERVERS names servers, separated by commas, or is "colocated"; PACE_SERVERS_TOKEN is the token, and
    PACE_SERVERS_HOST this host.

    Raises
    ------
    InvalidOptions
        If a variable is not valid, servers on other machines have no token, or the model is on a GPU.
    """
    if model is not None and device_of(model) is not None:
        raise InvalidOptions(
            f"communication is {type(given).__name__} and the model is on a GPU, but parameter servers sum in"
            " the host's memory: use AllReduce()"
        )
    token = given.token or os.environ.get("PACE_SERVERS_TOKEN") or None
    servers = given.servers
    if servers is None:
        named = os.environ.get("PACE_SERVERS") or "colocated"
        servers = named.split(",") if named != "colocated" else "colocated"
    host = given.host
    if servers == "colocated":
        host = host or os.environ.get("PACE_SERVERS_HOST") or _own_host(token)
    complete = replace(given, servers=servers, token=token, host=host)
    if token is None and servers != "colocated":
        for place in servers:
            if not is_loopback(parse_address(place, "").host):
                raise InvalidOptions(
                    f"the server {place} is on another machine: give a token, or set PACE_SERVERS_TOKEN"
                )
    if isinstance(complete, Mixed):
        assert model is not None
        return replace(complete, pushed=pushed_gradients(model, complete.pushed))
    return complete


def _own_host(token: str | None) -> str:
    """Return the address under which other ranks reach this process; without a token, this machine's own."""
    master = os.environ.get("MASTER_ADDR")
    if not token or not master:
        return "127.0.0.1"
    family, _, _, _, where = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # sends nothing, but chooses the interface
        host: str = probe.getsockname()[0]
        return host


def pushed_gradients(model: nn.Module, patterns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the gradients that are pushed, sorted.

    Parameters
    ----------
    patterns
        Names or shell patterns, for example "embedding.*"; None for the weights of all embeddings.

    Raises
    ------
    InvalidOptions
        If one matches no gradient, or there are no embeddings.
    """
    named = {name.replace("_orig_mod.", ""): parameter for name, parameter in model.named_parameters()}
    if patterns is None:
        tables = {
            module.weight for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        }
        found = {name for name, parameter in named.items() if parameter in tables}
        if not found:
            raise InvalidOptions(
                "communication is Mixed and the model has no embedding: say in Mixed(pushed=...) what to push"
            )
        return tuple(sorted(found))
    matched: set[str] = set()
    for pattern in patterns:
        if not isinstance(pattern, str) or not (mine := fnmatch.filter(named, pattern)):
            raise InvalidOptions(f"pushed has {pattern!r}: the model has no such gradient")
        matched.update(mine)
    return tuple(sorted(matched))
