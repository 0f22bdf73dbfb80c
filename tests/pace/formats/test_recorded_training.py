"""What the installed torch records of real training, read by the importers: no file is made up here."""

import json
from pathlib import Path

import pytest

from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import Profile
from pace.formats.kineto import read_kineto
from pace.formats.reading import FormatWarning
from pace.formats.shaped_steps import read_execution_trace_profile
from pace.simulation import make_policy, run_policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WORDS, MIDDLE = 50 * 16 * 4, (16 * 16 + 16) * 4


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train both models in one process; return the folder with a folder for each."""
    pytest.importorskip("torch")
    from tests.pace.formats.record_training import record_both
    from tests.runtime.launch import run_ranks

    folder = tmp_path_factory.mktemp("recorded")
    run_ranks(record_both, 1, str(folder), backend="none")
    return folder


def _groups(profile: Profile) -> list[tuple[int, int]]:
    groups = profile.metadata["recorded_allreduces"]
    return [(len(group["gradients"]), group["size_bytes"] // 4) for group in groups]


def test_resnet50_under_ddp_has_its_gradients_and_its_five_buckets(recorded: Path) -> None:
    """Sizes come from the execution trace, the buckets from where Gloo's calls begin.

    161 gradients of 25,557,032 elements; the buckets are those of a public trace of the same model on two
    A100. Gloo says in its own annotations how much it sent: the match is its sizes against ours.
    """
    folder = recorded / "resnet50"
    with pytest.warns(FormatWarning, match="all-reduces among 1 worker, and may be higher among 2"):
        profile = read_kineto(
            [folder / "kineto.json.gz"], execution_trace=folder / "shapes.json", workers=2, name="resnet50"
        )
    assert len(profile.gradients) == 161
    assert sum(gradient.size_bytes for gradient in profile.gradients) == 25_557_032 * 4
    assert {gradient.dtype for gradient in profile.gradients} == {"float32"}
    assert _groups(profile) == [
        (2, 2_049_000),
        (15, 7_875_584),
        (12, 6_563_840),
        (51, 6_637_568),
        (81, 2_431_040),
    ]
    assert profile.metadata["recorded_allreduces_match"] is True
    assert profile.metadata["steps"] == 2
    simulated = run_policy(profile, make_policy("ddp")).windows[0].traffic
    assert [size // 4 for size in simulated.size_bytes.tolist()] == [size for _, size in _groups(profile)]


@pytest.mark.parametrize("joined", [False, True])
def test_a_shared_parameter_is_needed_by_its_first_use(recorded: Path, joined: bool) -> None:
    """One matrix embeds the words and makes the logits: one gradient, made last, needed first.

    Autograd adds up what both uses contribute before it accumulates, and the use that comes first in the
    forward pass is the last one backwards. Its tail is the longest of all uses, which is what counts.
    """
    folder = recorded / "tied"
    shapes = folder / "shapes.json" if joined else None
    with pytest.warns(FormatWarning, match="all-reduces among 1 worker, and may be higher among 2"):
        profile = read_kineto([folder / "kineto.json.gz"], execution_trace=shapes, workers=2)
    waits = {name: op.name for op in profile.ops for name in op.waits_for}
    assert [gradient.size_bytes for gradient in profile.gradients] == [64, 1024, WORDS]
    shared = profile.gradients[-1]
    assert shared.producer.endswith("EmbeddingBackward0")
    assert waits[shared.name] == "fwd/000.embedding"
    assert profile.timing.tail_s[-1] == max(profile.timing.tail_s)
    assert _groups(profile) == [(2, MIDDLE // 4), (1, WORDS // 4)]
    assert profile.metadata["tied_parameters"] == 1
    assert profile.metadata["recorded_allreduces_match"] is True


@pytest.mark.parametrize("mixed_up", [False, True])
def test_the_execution_trace_alone_gives_the_same_gradients(
    recorded: Path, tmp_path: Path, mixed_up: bool
) -> None:
    """Its durations are counted, its structure is the recorded one.

    If Gloo's thread is recorded at the same moment, torch 2.13 writes a backward op and what it calls to the
    op before it (6 of 240 recordings on a busy machine).
    """
    trace = recorded / "tied" / "shapes.json"
    if mixed_up:
        document = json.loads(trace.read_text())
        nodes = sorted(document["nodes"], key=lambda node: node["id"])
        name = "autograd::engine::evaluate_function: "
        backward = [node for node in nodes if node["name"].startswith(name)]
        at = max(place for place, node in enumerate(backward) if node["name"].endswith("EmbeddingBackward0"))
        for node in nodes:
            if node["ctrl_deps"] == backward[at]["id"]:
                node["ctrl_deps"] = backward[at - 1]["id"]
        backward[at]["ctrl_deps"] = backward[at - 1]["id"]
        trace = tmp_path / "shapes.json"
        trace.write_text(json.dumps(document))
    profile = read_execution_trace_profile(
        trace,
        device_tflops=1.0,
        workers=2,
        allreduce=AffineAllReduce(latency_s=1e-4, seconds_per_byte=1e-9),
    )
    waits = {name: op.name for op in profile.ops for name in op.waits_for}
    assert sorted(gradient.size_bytes for gradient in profile.gradients) == [64, 1024, WORDS]
    largest = max(profile.gradients, key=lambda gradient: gradient.size_bytes)
    assert "embedding" in waits[largest.name]
