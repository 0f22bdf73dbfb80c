"""What packs add to the service's interface: routes, examples of answers, and views of the web page."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fastapi import APIRouter

from pace.packs import parts


@dataclass(frozen=True, kw_only=True)
class HttpPart:
    """What one pack adds.

    Attributes
    ----------
    name
        Name of the pack.
    tags
        What OpenAPI says of its tags, by name; they are those of its questions and of its routers.
    routers
        Routes besides those of its questions.
    examples
        JSON file of answers for OpenAPI, as ``openapi.EXAMPLES``.
    web
        Folder of its part of the web page, served as ``/web/packs/NAME``.
    views
        Titles of its views; each is the default export of the module of its name in ``web``.
    answers
        For kinds of its questions, the view that shows an answer, and the name of its id in the address.
    """

    name: str
    tags: Mapping[str, str]
    routers: tuple[APIRouter, ...] = ()
    examples: Path
    web: Path
    views: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@cache
def http_parts() -> tuple[HttpPart, ...]:
    """Return what installed packs add."""
    return tuple(parts("http"))
