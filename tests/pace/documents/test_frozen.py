"""Metadata cannot be changed behind the profile's hash."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import Profile, parse_profile

PROFILE = Profile(
    name="annotated",
    workers=2,
    ops=(),
    gradients=(),
    allreduce=AffineAllReduce(latency_s=0.0, seconds_per_byte=1e-9),
    metadata={"note": "by hand", "runs": [1, {"inner": 2}]},
)


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata: metadata.update(note="other"),
        lambda metadata: metadata.__setitem__("note", "other"),
        lambda metadata: metadata.pop("note"),
        lambda metadata: metadata.__ior__({"note": "other"}),
        lambda metadata: metadata["runs"].append(3),
        lambda metadata: metadata["runs"].__iadd__([3]),
        lambda metadata: metadata["runs"].sort(),
        lambda metadata: metadata["runs"][1].clear(),
    ],
)
def test_metadata_refuses_to_change(change: Callable[[Any], object]) -> None:
    """At every depth, and by every way that dicts and lists have."""
    before = PROFILE.to_json()
    with pytest.raises(TypeError, match="documents do not change"):
        change(PROFILE.metadata)
    assert PROFILE.to_json() == before


def test_what_was_given_may_change_later() -> None:
    """The profile keeps a copy of its own."""
    given = {"runs": [1]}
    profile = PROFILE.replace(metadata=given)
    sha256 = profile.sha256
    given["runs"].append(2)
    assert profile.metadata == {"runs": [1]}
    assert parse_profile(profile.to_json()).sha256 == sha256


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_profiles_can_be_copied_and_sent_to_processes(copied: Callable[[Any], Any]) -> None:
    """A copy is equal, and refuses changes as well."""
    again = copied(PROFILE)
    assert again == PROFILE
    with pytest.raises(TypeError):
        again.metadata["runs"].append(3)
