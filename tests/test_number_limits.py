"""Every number that a document or a request holds has a limit: a slip of units is refused."""

import importlib
import importlib.util
import json
import pkgutil
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError

import pace
from pace.api.http.app import create_app
from pace.api.settings import Settings
from pace.documents.base import LIMIT, ComputedDocument, Document
from pace.documents.collective_costs import RingAllReduce
from pace.documents.options import SimulationOptions
from pace.documents.profile import parse_profile
from pace.errors import InvalidOptions, InvalidProfile
from tests.api.profiles import layered_profile

# Importing these needs what trains; they define no documents that people write.
WITHOUT = ("pace.runtime", "pace_servers.runtime", "pace_servers.embedding", "pace.api.storage.migrations")


def documents() -> list[type[Document]]:
    """Return all documents of the core and of packs that are not only written."""
    packs = filter(importlib.util.find_spec, ("pace_fabric", "pace_servers", "pace_sync"))
    for root in (pace, *map(importlib.import_module, packs)):
        for module in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
            if not module.name.startswith(WITHOUT):
                importlib.import_module(module.name)
    return [
        each
        for each in subclasses(Document)
        if not issubclass(each, ComputedDocument) and each.__module__.startswith("pace")
    ]


def subclasses(kind: type[Document]) -> Iterator[type[Document]]:
    """Yield the classes below one."""
    for below in kind.__subclasses__():
        yield below
        yield from subclasses(below)


def unlimited(schema: Any, place: str, definitions: dict[str, Any], seen: set[str]) -> Iterator[str]:
    """Yield the places of numbers that may be as large as anybody likes."""
    if isinstance(schema, list):
        for part in schema:
            yield from unlimited(part, place, definitions, seen)
    if not isinstance(schema, dict):
        return
    name = str(schema.get("$ref", "")).rsplit("/", 1)[-1]
    if name and name not in seen:
        seen.add(name)
        yield from unlimited(definitions[name], name, definitions, seen)
    if schema.get("type") in ("number", "integer") and not {"const", "enum"} & schema.keys():
        most = schema.get("maximum", schema.get("exclusiveMaximum"))
        least = schema.get("minimum", schema.get("exclusiveMinimum"))
        if most is None or least is None or most > 2**63 or least < -LIMIT:
            yield place
    for key, part in schema.items():
        if key not in ("$defs", "examples", "example", "default"):
            yield from unlimited(part, f"{place} {key}", definitions, seen)


def test_every_number_of_every_document_has_a_limit() -> None:
    """Also of documents that are added later, for the base class sets it."""
    found = documents()
    assert len(found) > 100
    for document in found:
        schema = document.model_json_schema()
        others = set(schema.get("$defs", {})) - {document.__name__}  # they are found themselves
        assert list(unlimited(schema, document.__name__, schema.get("$defs", {}), others)) == []


def test_every_number_of_every_request_has_a_limit() -> None:
    """In bodies, and in the parameters of addresses and headers."""
    openapi = create_app(Settings()).openapi()
    asked = [
        operation.get(part, {})
        for methods in openapi["paths"].values()
        for operation in methods.values()
        for part in ("parameters", "requestBody")
    ]
    assert list(unlimited(asked, "request", openapi["components"]["schemas"], set())) == []


@pytest.mark.parametrize("rate", [1e20, -1e20, float(LIMIT), float("inf"), float("nan")])
def test_a_number_beyond_the_limit_is_refused(rate: float) -> None:
    """A rate of 1e20 bytes/s is a slip: the refusal names the field and the limit."""
    with pytest.raises(InvalidProfile, match="bandwidth_bytes_per_s"):
        RingAllReduce(bandwidth_bytes_per_s=rate, latency_s=0.0)


def test_a_profile_of_such_a_network_is_refused() -> None:
    """With the field, the limit and the value in one line; a smaller number is taken."""
    profile = layered_profile(3)
    profile["allreduce"] = {"kind": "ring", "bandwidth_bytes_per_s": 1e20, "latency_s": 0.0}
    message = r"bandwidth_bytes_per_s: expected a number above 0 and below 1e18 \(got 1e\+20\)"
    with pytest.raises(InvalidProfile, match=message):
        parse_profile(json.dumps(profile))
    profile["allreduce"]["bandwidth_bytes_per_s"] = 1e17
    assert parse_profile(json.dumps(profile)).allreduce.kind == "ring"


def test_an_error_names_all_limits_of_a_number() -> None:
    """Whatever is wrong with it: too small, too large, no number, or of another type."""
    for value in (-1, 11, "nan", "many"):
        with pytest.raises(InvalidOptions) as refused:
            SimulationOptions(jitter=value)
        assert str(refused.value) == f"jitter: expected a number from 0 to 10 (got {value!r})"


def test_an_error_names_the_stricter_of_two_limits() -> None:
    """A type's own limit and that of a field."""

    class Limited(Document):
        size: Annotated[int, Field(ge=0, lt=2**63), Field(gt=0, le=100)]

    with pytest.raises(ValidationError, match="expected a whole number above 0 and at most 100"):
        Limited(size=0)
