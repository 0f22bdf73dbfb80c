"""Refuses requests for other hosts, and requests from web pages of other hosts."""

from collections.abc import Collection
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from pace.api.errors import ForeignHost
from pace.api.http.headers import header

_PROBES = ("/healthz", "/readyz")


class HostCheck:
    """ASGI middleware around the routes.

    A service on loopback needs no keys, so it must refuse web pages in its user's browser: a page can send
    requests to any address, and can make its own host's name resolve to 127.0.0.1.

    Parameters
    ----------
    allowed
        Host names that requests may use.
    loopback
        Whether all names of loopback are allowed, too. If not, and `allowed` is empty, all names are allowed.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str], *, loopback: bool) -> None:
        self.app = app
        self._allowed = frozenset(name.lower() for name in allowed)
        self._loopback = loopback
        # Most requests name the same few hosts, and parsing a URL costs as much as answering a read.
        self._is_allowed = lru_cache(256)(self._find_out)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it."""
        if scope["type"] == "http" and (self._loopback or self._allowed) and scope["path"] not in _PROBES:
            host = header(scope, b"host") or ""
            if not self.allows(host):
                raise ForeignHost(
                    f'the request is for host "{host[:200]}", which PACE_ALLOWED_HOSTS does not allow'
                )
            origin = header(scope, b"origin")
            if origin is not None and not self._is_allowed(origin):
                raise ForeignHost(f'pages of "{origin[:200]}" may not use this service')
        await self.app(scope, receive, send)

    def allows(self, host: str) -> bool:
        """Whether a request may name this host."""
        return not (self._loopback or self._allowed) or self._is_allowed(f"//{host}")

    def _find_out(self, url: str) -> bool:
        try:
            name = urlsplit(url).hostname or ""
        except ValueError:
            return False
        return name in self._allowed or (self._loopback and _is_loopback(name))


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
