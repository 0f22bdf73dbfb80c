"""Reads single headers of requests, which is faster than wrapping all of them, and handles unusual forms."""

from urllib.parse import unquote, urlsplit

from starlette.types import Message, Scope, Send

from pace.api.errors import AmbiguousLength, InvalidRequest


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
