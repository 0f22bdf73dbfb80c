"""What worker processes do: read bodies and solve. Plain functions from bytes to bytes.

Everything that can take long or much memory for a large profile is here, so that it never runs in
the process that answers requests.
"""

import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from pace.api.documents import ScheduleRequest, example_profile
from pace.api.problems import Refused, invalid_request
from pace.errors import InvalidOptions
from pace.optimize import optimize
from pace.options import Options
from pace.profile import Profile, parse_profile
from pace.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A body that was read and found valid.

    Attributes
    ----------
    profile_document
        The profile's JSON, compressed by zlib, as it is stored.
    options
        The options' canonical JSON.
    key
        SHA-256 over profile, options and solver version: equal keys have equal schedules.
    """

    job: str | None
    profile_name: str
    profile_sha256: str
    fingerprint: str
    num_ops: int
    num_gradients: int
    profile_document: bytes
    options: str
    key: str


def read_submission(body: bytes) -> Received:
    """Parse and validate the body of a schedule request.

    Raises
    ------
    InvalidProfile, InvalidOptions, Refused
        With the validator's message.
    """
    try:
        request = ScheduleRequest.model_validate_json(body, strict=True)
    except ValidationError as error:
        _explain(body, error)
        raise Refused(invalid_request(_faults(error))) from None
    profile = request.profile
    options = _canonical(request.options)
    return Received(
        job=request.job,
        profile_name=profile.name,
        profile_sha256=profile.sha256,
        fingerprint=profile.fingerprint,
        num_ops=len(profile.ops),
        num_gradients=len(profile.gradients),
        profile_document=_pack(profile),
        options=options,
        key=_key("schedule", profile.sha256, options),
    )


def load_solver() -> None:
    """Solve a tiny profile, so that everything a solve needs is loaded and compiled."""
    optimize(Profile.model_validate(example_profile()))


def solve(profile_document: bytes, options: str) -> bytes:
    """Return the schedule document for a stored profile."""
    profile = parse_profile(zlib.decompress(profile_document))
    return optimize(profile, Options.model_validate_json(options)).to_json()


def _pack(profile: Profile) -> bytes:
    return zlib.compress(profile.model_dump_json().encode(), level=1)


def _canonical(document: BaseModel) -> str:
    return json.dumps(document.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


def _key(kind: str, profile_sha256: str, options: str) -> str:
    return hashlib.sha256("\n".join([kind, __version__, profile_sha256, options]).encode()).hexdigest()


def _explain(body: bytes, error: ValidationError) -> None:
    # The profile's own parser names the op or gradient at fault; pydantic knows only its place.
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict):
        return
    places = {
        fault["loc"][0] for fault in error.errors(include_url=False, include_input=False) if fault["loc"]
    }
    if "profile" in places and "profile" in document:
        parse_profile(json.dumps(document["profile"]))
    if "options" in places and "options" in document:
        try:
            Options.model_validate_json(json.dumps(document["options"]), strict=True)
        except ValidationError as fault:
            raise InvalidOptions(_faults(fault)) from None


def _faults(error: ValidationError) -> str:
    return "\n".join(
        ": ".join([*map(str, fault["loc"]), fault["msg"].removeprefix("Value error, ")])
        for fault in error.errors(include_url=False, include_input=False)[:20]
    )
