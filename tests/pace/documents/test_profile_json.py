"""Profiles written as JSON and read back."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis.strategies import text

from pace.documents.collective_costs import SampledAllReduce
from pace.documents.profile import Profile, parse_profile
from pace.documents.profile_json import compact_profile
from pace.models import build
from tests.strategies import profiles


@pytest.mark.parametrize("streams", [0, 1, 2])
def test_a_written_profile_reads_back_equal(streams: int) -> None:
    """Every field survives, whatever was left out because it is the default."""
    profile = build("resnet50", device_tflops=8.0, batch=4, workers=8, streams=streams)  # type: ignore[arg-type]
    assert parse_profile(profile.to_json()).sha256 == profile.sha256
    assert parse_profile(compact_profile(profile)) == profile


def test_samples_and_empty_profiles_are_written() -> None:
    """Measured samples read back equal, and so does a profile with nothing in it."""
    profile = Profile(
        name='quotes " and \u00fcml\u00e4ute',
        workers=2,
        ops=(),
        gradients=(),
        allreduce=SampledAllReduce(samples=((1024, 1e-4), (2048, 1.5e-4))),
    )
    assert parse_profile(profile.to_json()).sha256 == profile.sha256
    assert parse_profile(compact_profile(profile)) == profile


def test_a_compact_profile_says_nothing_that_an_older_version_does_not_know() -> None:
    """Fields that came later are there only if they are used; halves of a cost survive."""
    cost = SampledAllReduce(samples=((1024, 1e-4), (2048, 1.5e-4)))
    op = {"name": "bwd", "duration_s": 1.0}
    gradient = {"name": "w", "size_bytes": 1024, "producer": "bwd"}
    plain = Profile.model_validate(
        {"name": "p", "workers": 2, "ops": [op], "gradients": [gradient], "allreduce": cost.model_dump()}
    )
    assert json.loads(compact_profile(plain)) == {
        "schema_version": 1,
        "name": "p",
        "workers": 2,
        "ops": [op],
        "gradients": [gradient],
        "allreduce": {"kind": "samples", "samples": [[1024, 1e-4], [2048, 1.5e-4]]},
    }
    halves = plain.replace(reduce_scatter={"kind": "affine", "latency_s": 1e-5, "seconds_per_byte": 1e-9})
    assert parse_profile(compact_profile(halves)) == halves


def test_every_op_has_a_line_of_its_own() -> None:
    """A difference between two profiles shows op by op."""
    profile = build("vgg16", device_tflops=8.0, batch=4, workers=8)
    lines = profile.to_json().decode().splitlines()
    for op in profile.ops:
        assert sum(f'"name": {json.dumps(op.name)}' in line for line in lines) == 1


@given(profiles(), text())
def test_equal_profiles_have_one_digest(profile: Profile, name: str) -> None:
    """However they were written; and another name is another digest."""
    profile = profile.replace(name=name or "a", metadata={"b": 1, "a": {"d": [2.5], "c": None}})
    document = json.loads(profile.to_json())
    backwards = {key: document[key] for key in reversed(document)}
    backwards["metadata"] = {"a": {"c": None, "d": [2.5]}, "b": 1}
    backwards["ops"] = [{"duration_std_s": 0.0, "deps": [], "waits_for": []} | op for op in document["ops"]]
    again = parse_profile(json.dumps(backwards))
    assert again == profile
    assert again.sha256 == profile.sha256 == hashlib.sha256(compact_profile(profile).encode()).hexdigest()
    assert profile.replace(name=f"{profile.name}2").sha256 != profile.sha256
