"""Warnings about measured costs: few samples, one rank's calls, calls that differ, other sizes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pace import Profile
from pace.cli.main import app
from pace.cost_warnings import cost_warnings, profile_warnings
from pace.documents.collective_costs import SampledAllReduce
from pace.documents.profile import parse_profile
from pace.errors import InvalidProfile
from tests.strategies import affine, layered

MEASURED = SampledAllReduce(
    samples=((1e3, 1e-3), (1e4, 2e-3), (1e5, 4e-3)), counts=(9, 9, 9), deviations_s=(1e-4, 0.0, 1e-4), ranks=4
)


def _profile(cost: SampledAllReduce, size_bytes: int = 50_000) -> Profile:
    return layered([size_bytes], allreduce=cost, backward_s=[1], forward_s=[1])


def _changed(**changes: object) -> SampledAllReduce:
    return MEASURED.model_copy(update=changes)


def test_a_well_measured_cost_is_not_doubted() -> None:
    """Three sizes by all ranks, calls alike, gradients between the sizes; nor is a formula."""
    assert list(profile_warnings(_profile(MEASURED))) == []
    assert list(cost_warnings(affine(1.0, 1.0))) == []


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (SampledAllReduce(samples=((1e3, 1e-3), (1e3, 2e-3), (1e5, 4e-3))), "2 sizes were measured"),
        (_changed(ranks=1), "from one rank's calls"),
        (_changed(deviations_s=(1e-4, 3e-3, 1e-4)), "up to 150% of the assumed cost"),
    ],
)
def test_each_doubt_has_its_sentence(cost: SampledAllReduce, said: str) -> None:
    """And no other."""
    (warning,) = cost_warnings(cost)
    assert said in warning


@pytest.mark.parametrize(
    ("size_bytes", "said"),
    [
        (200_000, None),
        (200_004, "the largest sample is of 100,000 bytes"),
        (500, None),
        (496, "the smallest"),
    ],
)
def test_gradients_outside_the_samples_are_extrapolated(size_bytes: int, said: str | None) -> None:
    """Up to twice the largest and half the smallest the samples still tell."""
    warnings = list(profile_warnings(_profile(MEASURED, size_bytes)))
    assert [said in warning for warning in warnings if said is not None] == ([] if said is None else [True])
    assert len(warnings) == (said is not None)


def test_counts_are_of_samples() -> None:
    """One for each, or none at all."""
    with pytest.raises(InvalidProfile, match="2 counts for 3 samples"):
        SampledAllReduce(samples=MEASURED.samples, counts=(1, 1))


def test_counts_are_written_read_and_part_of_the_digest() -> None:
    """Without them a document and its digest are what they were before there were any."""
    profile = _profile(MEASURED)
    assert parse_profile(profile.to_json()) == profile
    plain = _profile(SampledAllReduce(samples=MEASURED.samples))
    assert list(json.loads(plain.to_json())["allreduce"]) == ["kind", "samples"]
    assert plain.sha256 != profile.sha256


def test_the_digest_of_an_older_document_is_what_it_was() -> None:
    """That of a profile written before ops had kinds and costs had counts."""
    document = {
        "schema_version": 1,
        "name": "old",
        "workers": 2,
        "ops": [{"name": "b", "duration_s": 1.0}, {"name": "f", "duration_s": 1.0, "waits_for": ["g"]}],
        "gradients": [{"name": "g", "size_bytes": 4, "dtype": "float32", "producer": "b"}],
        "allreduce": {"kind": "samples", "samples": [[1.0, 0.5], [4.0, 0.75]]},
    }
    assert parse_profile(json.dumps(document)).sha256 == (
        "c6ad56752f84ef644a5e33cbec1e9a071e078ebf30cf02fcd729fbd4d5fe7ee9"
    )


def test_what_if_and_fit_say_it(tmp_path: Path) -> None:
    """On stderr, so that scripts read what they always read."""
    path = tmp_path / "profile.json"
    path.write_bytes(_profile(_changed(ranks=1), 5_000_000).to_json())
    asked = CliRunner().invoke(app, ["what-if", str(path), "--bandwidth-gbps", "10", "--json"])
    assert asked.exit_code == 0, asked.output
    assert "one rank's calls" in asked.stderr
    assert "up to the 5,000,000 bytes" in " ".join(asked.stderr.split())
    assert "--algorithm" in asked.stderr
    json.loads(asked.stdout)
    log = tmp_path / "log.csv"
    log.write_text("bytes,seconds,workers\n1024,0.5,8\n2048,0.75,8\n")
    fitted = CliRunner().invoke(app, ["fit", str(log), "--json"])
    assert fitted.exit_code == 0, fitted.output
    assert "2 sizes were measured" in fitted.stderr
    assert json.loads(fitted.stdout)["ranks"] == 8
