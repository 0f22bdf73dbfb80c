"""From the bytes of a body to what is asked: what all kinds share, and profiles by themselves."""

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pace.api.errors import ContentTooLarge, InvalidRequest
from pace.api.questions.ambiguous_documents import refuse_lookalikes, refuse_repeated_keys
from pace.api.questions.kind import InputDocument, ReadLimits, ReceivedProfile
from pace.documents.base import explain
from pace.documents.profile import Profile, parse_profile
from pace.documents.profile_json import compact_profile
from pace.errors import InvalidOptions
from pace.gc_pause import paused_gc
from pace.gzipped import GzipFault, GzipTooLarge, gunzipped

D = TypeVar("D", bound=BaseModel)


def read_document(
    body: bytes,
    gzipped: bool,
    max_bytes: int,
    document: type[D],
    parts: Mapping[str, Callable[[str], object]] | None = None,
) -> D:
    """Parse and validate a body.

    Parameters
    ----------
    parts
        Parsers of fields, which name an op or an option at fault; pydantic knows only its place.

    Raises
    ------
    InvalidRequest, ContentTooLarge
        With the validator's message; before that what the parts raise.
    """
    body = decompressed(body, max_bytes) if gzipped else body
    try:
        request = document.model_validate_json(body, strict=True)
    except ValidationError as error:
        _explain(body, error, parts or {})
        raise InvalidRequest(explain(error)) from None
    refuse_repeated_keys(body)
    return request


# The collector rests until what was read is gone: it would look at every object of it, to find nothing.
@paused_gc()
def read_profile(body: bytes, gzipped: bool, limits: ReadLimits) -> ReceivedProfile:
    """Parse and validate a profile; raises InvalidProfile, InvalidRequest and ContentTooLarge."""
    body = decompressed(body, limits.max_bytes) if gzipped else body
    profile = parse_profile(body)
    refuse_repeated_keys(body)
    return receive(profile, limits)


def read_file(
    function: Callable[..., Any], path: Path, gzipped: bool, limits: ReadLimits, *arguments: str
) -> Any:
    """Do what a function does with a body, with one that is in a file."""
    return function(path.read_bytes(), gzipped, limits, *arguments)


def receive(profile: Profile, limits: ReadLimits) -> ReceivedProfile:
    """Return a valid profile as it is stored; raises ContentTooLarge beyond the limits, InvalidProfile."""
    for what, count, limit in (
        ("ops", len(profile.ops), limits.max_ops),
        ("gradients", len(profile.gradients), limits.max_gradients),
    ):
        if count > limit:
            raise ContentTooLarge(f"the profile has {count} {what}; this service takes at most {limit}")
    refuse_lookalikes(profile)
    document = compact_profile(profile).encode()
    return ReceivedProfile(
        sha256=hashlib.sha256(document).hexdigest(),  # profile.sha256, without writing it again
        name=profile.name,
        fingerprint=profile.fingerprint,
        num_ops=len(profile.ops),
        num_gradients=len(profile.gradients),
        size_bytes=len(document),
        document=zlib.compress(document, level=1),
    )


def about_profile(profile: Profile | None, profile_id: str | None, limits: ReadLimits) -> dict[str, Any]:
    """Return what a question about a profile has of it: the profile, or the id of one that is stored."""
    received = None if profile is None else receive(profile, limits)
    return {"input": received, "input_sha256": profile_id if received is None else received.sha256}


def about_document(sha256: str, name: str, document: str) -> dict[str, Any]:
    """Return what a question about a document of its own has of that."""
    packed = zlib.compress(document.encode(), level=1)
    return {"input": InputDocument(sha256=sha256, name=name, document=packed), "input_sha256": sha256}


def parser_of(options: type[BaseModel]) -> Callable[[str], object]:
    """Return what refuses options by InvalidOptions."""

    def parse(text: str) -> object:
        try:
            return options.model_validate_json(text, strict=True)
        except ValidationError as fault:
            raise InvalidOptions(explain(fault)) from None

    return parse


def canonical_json(document: BaseModel) -> str:
    """Return the same text for equal documents."""
    return json.dumps(document.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


def decompressed(body: bytes, max_bytes: int) -> bytes:
    """Undo gzip; raises InvalidRequest, and ContentTooLarge beyond `max_bytes`."""
    try:
        return gunzipped(body, max_bytes)
    except GzipTooLarge as fault:
        raise ContentTooLarge(f"the body is {fault}") from None
    except GzipFault as fault:
        raise InvalidRequest(f"the body is not gzip, as Content-Encoding says: {fault}") from None


def _explain(body: bytes, error: ValidationError, parts: Mapping[str, Callable[[str], object]]) -> None:
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict):
        return
    faults = error.errors(include_url=False, include_input=False)
    places = {fault["loc"][0] for fault in faults if fault["loc"]}
    for name, parse in parts.items():
        if name in places and name in document:
            parse(json.dumps(document[name]))
