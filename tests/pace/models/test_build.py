"""Durations, streams, options and metadata of computed profiles."""

from pathlib import Path

import pytest

from pace.documents.profile import load_profile
from pace.errors import InvalidOptions
from pace.models import NAMES, build

EXAMPLES = Path(__file__).parents[3] / "examples" / "profiles"


def test_durations_follow_from_the_stated_rates() -> None:
    """A large convolution takes its operations over the rate, a ReLU its bytes over the bandwidth."""
    profile = build("vgg16", device_tflops=10.0, memory_gbytes_per_s=500.0, batch=64, workers=8)
    duration = {op.name: op.duration_s for op in profile.ops}
    assert duration["fwd/conv1_2"] == pytest.approx(2 * 64 * 64 * 9 * 224 * 224 * 64 / 10e12, rel=1e-5)
    assert duration["fwd/relu1_2"] == pytest.approx(2 * 64 * 224 * 224 * 64 * 4 / 500e9, rel=1e-5)
    assert duration["bwd/relu1_2"] == pytest.approx(1.5 * duration["fwd/relu1_2"], rel=1e-5)


def test_small_batches_pay_for_reading_the_weights() -> None:
    """With one image, VGG16's largest layer is bound by its 103 million weights, not by its products."""
    profile = build("vgg16", device_tflops=10.0, memory_gbytes_per_s=500.0, batch=1, workers=2)
    duration = {op.name: op.duration_s for op in profile.ops}
    assert duration["fwd/fc6"] == pytest.approx(25088 * 4096 * 4 / 500e9, rel=0.001)


def test_half_precision_halves_sizes_and_traffic() -> None:
    """Gradients of float16 are half as large and elementwise ops half as long."""
    single = build("gpt2-small", device_tflops=8.0, batch=1024, workers=8)
    half = build("gpt2-small", device_tflops=8.0, batch=1024, workers=8, dtype="float16")
    assert {gradient.dtype for gradient in half.gradients} == {"float16"}
    assert [2 * gradient.size_bytes for gradient in half.gradients] == [
        gradient.size_bytes for gradient in single.gradients
    ]
    name = "fwd/h.0.mlp.gelu"
    long, short = (next(op.duration_s for op in p.ops if op.name == name) for p in (single, half))
    assert long == pytest.approx(2 * short, rel=1e-5)


@pytest.mark.parametrize("name", ["resnet50", "inception-v3", "transformer"])
def test_more_streams_never_lengthen_the_window(name: str) -> None:
    """C0 with free overlap <= with two streams <= with one, and branches do make a difference."""
    free, two, one = (
        build(name, device_tflops=8.0, batch=64, workers=8, streams=streams).timing.compute_s
        for streams in (0, 2, 1)
    )
    assert free <= two <= one
    assert free < one


def test_one_stream_adds_all_durations_up() -> None:
    """On one stream the window is the sum of its ops."""
    profile = build("inception-v3", device_tflops=8.0, batch=16, workers=4)
    assert profile.timing.compute_s == pytest.approx(sum(op.duration_s for op in profile.ops))


@pytest.mark.parametrize("workers", [2, 5, 16])
def test_the_default_network_has_ten_gigabits_and_a_third_of_a_millisecond(workers: int) -> None:
    """Latency adds up to 0.3 ms whatever the number of workers; volume follows the ring formula."""
    cost = build("vgg16", device_tflops=8.0, batch=8, workers=workers).cost
    assert float(cost(1)) == pytest.approx(0.3e-3, rel=1e-4)
    assert float(cost(10**9)) - 0.3e-3 == pytest.approx(2 * (workers - 1) / workers / 1.25, rel=1e-9)


def test_one_worker_sends_nothing() -> None:
    """A profile for one worker is valid and its all-reduce is free."""
    assert float(build("vgg16", device_tflops=8.0, batch=8, workers=1).cost(10**9)) == 0.0


def test_metadata_says_computed_and_how() -> None:
    """Nobody can take the profile for a measurement."""
    metadata = build("BERT-Large", device_tflops=50.0, batch=4096, workers=8).metadata
    assert metadata["origin"] == "computed"
    assert metadata["architecture"] == "bert-large"
    assert metadata["batch_unit"] == "tokens"
    assert metadata["device_tflops"] == 50.0
    assert metadata["memory_gbytes_per_s"] == 2000.0


def test_unknown_architecture_is_refused_with_the_choices() -> None:
    """The error lists every name."""
    with pytest.raises(InvalidOptions, match="lenet") as refusal:
        build("lenet", device_tflops=8.0, batch=8, workers=8)
    assert all(name in str(refusal.value) for name in NAMES)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"device_tflops": 0.0}, "device_tflops"),
        ({"device_tflops": float("nan")}, "device_tflops"),
        ({"memory_gbytes_per_s": float("inf")}, "memory_gbytes_per_s"),
        ({"batch": -1}, "batch"),
        ({"workers": 0}, "workers"),
    ],
)
def test_impossible_rates_are_refused(changes: dict[str, float], option: str) -> None:
    """A rate, a batch or a number of workers that is not positive names itself in the error."""
    options: dict[str, float] = {"device_tflops": 8.0, "batch": 8, "workers": 8}
    with pytest.raises(InvalidOptions, match=option):
        build("vgg16", **(options | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["resnet50", "transformer", "vgg16"])
def test_example_profiles_are_current(name: str) -> None:
    """The examples are what `pace model` computes from the rates and sizes in their metadata."""
    path = EXAMPLES / f"{name}.json"
    profile = load_profile(path)
    assert profile.metadata["architecture"] == name
    rates = {option: profile.metadata[option] for option in ("batch", "device_tflops", "memory_gbytes_per_s")}
    assert path.read_bytes() == build(name, workers=profile.workers, **rates).to_json()
