"""Looks at single headers of a request: to wrap all of them costs more than to answer."""

from starlette.types import Scope


def header(scope: Scope, name: bytes) -> str | None:
    """Return the first header of a name in lower case, or None."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None
