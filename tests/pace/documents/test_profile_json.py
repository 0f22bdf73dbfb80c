"""Profiles written as JSON and read back."""

import json

import pytest
from hypothesis import given
from hypothesis.strategies import text

from pace.documents.collective_costs import SampledAllReduce
from pace.documents.profile import Profile, parse_profile
from pace.documents.profile_json import canonical_profile, compact_profile
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
def test_a_canonical_profile_is_what_json_writes_of_its_sorted_fields(profile: Profile, name: str) -> None:
    """Ops and gradients are written by hand: no field may be forgotten, and no byte be another."""
    ops = tuple(
        op.model_copy(update={"kind": "communication"} if number % 2 else {"stream": name})
        for number, op in enumerate(profile.ops)
    )
    profile = profile.model_copy(update={"ops": ops, "name": name})
    wanted = profile.model_dump(mode="json")
    for op in wanted["ops"]:
        if op["kind"] == "compute":
            del op["kind"]
    for field in ("counts", "deviations_s", "ranks"):
        if not wanted["allreduce"].get(field, True):
            del wanted["allreduce"][field]
    for field in ("reduce_scatter", "all_gather", "compute_slowdown", "update"):
        if wanted[field] == Profile.model_fields[field].default:
            del wanted[field]
    assert canonical_profile(profile) == json.dumps(wanted, sort_keys=True, separators=(",", ":"))
