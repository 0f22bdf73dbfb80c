"""Reads and writes single headers, which is faster than wrapping all of them, and handles unusual forms."""

import re
from collections.abc import Iterable
from random import Random
from urllib.parse import unquote, urlsplit

from starlette.types import Message, Scope, Send

from pace.api.access import RateLeft
from pace.api.errors import AmbiguousLength, InvalidRequest

SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
NOTHING_LOADED = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
# Identifiers must be unique, not secret; the system's generator is slower.
_random = Random()


def request_id_of(given: str | None) -> str:
    """Return the identifier that a caller gave its request, or a new one.

    The caller's text goes into logs and headers, so it must not be able to forge either.
    """
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return f"{_random.getrandbits(128):032x}"


def bearer_of(given: str | None) -> str | None:
    """Return the token of an Authorization header, if it has one."""
    scheme, _, token = (given or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def rate_headers(rate: RateLeft) -> list[tuple[bytes, bytes]]:
    """Return the headers that tell what is left of a rate limit."""
    return [
        (b"ratelimit-limit", b"%d" % rate.limit),
        (b"ratelimit-remaining", b"%d" % rate.remaining),
        (b"ratelimit-reset", b"%d" % rate.reset_s),
    ]


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return headers as they are sent, each with its end of line."""
    return b"".join(b"%s: %s\r\n" % each for each in headers)


def header(scope: Scope, name: bytes) -> str | None:
    """Return the first header of a name in lower case, or None."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


def refuse_two_lengths(scope: Scope) -> None:
    """Refuse a request that gives its length in two ways (RFC 9112, section 6.1).

    Raises
    ------
    AmbiguousLength
        Otherwise a proxy may use the other length, and take the rest of the body for a request.
    """
    if header(scope, b"content-length") is not None and header(scope, b"transfer-encoding") is not None:
        raise AmbiguousLength("a request has either Content-Length or Transfer-Encoding, not both")


def in_origin_form(scope: Scope) -> Scope:
    """Return a request whose target is a whole URL as one with a path and a Host (RFC 9112, section 3.2.2).

    Raises
    ------
    InvalidRequest
        If it is no URL.
    """
    target: bytes = scope.get("raw_path") or b""
    if target.startswith(b"/"):
        return scope
    if not target.lower().startswith((b"http://", b"https://")):
        return scope
    try:
        url = urlsplit(target.decode("ascii"))
    except ValueError:
        raise InvalidRequest("the target of the request is no URL") from None
    path = url.path or "/"
    headers = [(b"host", url.netloc.rpartition("@")[2].encode())]
    headers += [(name, value) for name, value in scope["headers"] if name != b"host"]
    return {**scope, "path": unquote(path), "raw_path": path.encode(), "headers": headers}


def head_only(send: Send) -> Send:
    """Return a function that sends the head of an answer without its body."""
    complete = False

    async def send_head(message: Message) -> None:
        nonlocal complete
        if complete:
            return
        await send(message)
        if message["type"] == "http.response.start":
            complete = True
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return send_head
