"""Counts of the architectures against the papers, the frameworks and hand computation."""

import pytest

from pace.documents.profile import Profile
from pace.models import NAMES, architecture, build
from pace.models.layers import Architecture


def _build(name: str, streams: int = 1) -> Profile:
    batch = 32 if architecture(name).unit == "images" else 2048
    return build(name, device_tflops=8.0, batch=batch, workers=8, streams=streams)  # type: ignore[arg-type]


# The PACE paper's Table II: all-reduce operators, parameters in millions, compute operators.
@pytest.mark.parametrize(
    ("name", "gradients", "millions", "ops", "ops_off"),
    [
        ("vgg16", 32, 138.4, 80, 0.0),
        ("resnet50", 157, 25.5, 335, 0.01),
        ("seq2seq", 32, 67.2, 293, 0.02),
        ("transformer", 164, 91.8, 1061, 0.05),
    ],
)
def test_counts_meet_the_papers_table(
    name: str, gradients: int, millions: float, ops: int, ops_off: float
) -> None:
    """Gradients exactly, parameters to 3 %, compute ops to what the documentation promises."""
    profile = _build(name)
    assert len(profile.gradients) == gradients
    elements = sum(gradient.size_bytes for gradient in profile.gradients) // 4
    assert elements / 1e6 == pytest.approx(millions, rel=0.03)
    assert abs(len(profile.ops) - ops) <= ops_off * ops


@pytest.mark.parametrize(
    ("name", "parameters", "gradients"),
    [
        # torchvision's
        ("alexnet", 61_100_840, 16),
        ("vgg16", 138_357_544, 32),
        ("vgg19", 143_667_240, 38),
        ("resnet50-v1.5", 25_557_032, 161),
        ("inception-v3", 23_834_568, 284),
        # Hugging Face's: BertForPreTraining and GPT2LMHeadModel
        ("bert-large", 336_226_108, 398),
        ("gpt2-small", 124_439_808, 148),
        ("gpt2-medium", 354_823_168, 292),
        ("gpt2-large", 774_030_080, 436),
        ("gpt2-xl", 1_557_611_200, 580),
    ],
)
def test_parameters_equal_the_frameworks(name: str, parameters: int, gradients: int) -> None:
    """Parameter and gradient counts are exactly those of the published implementations."""
    network = architecture(name)
    assert sum(network.parameters.values()) == parameters
    assert len(network.parameters) == gradients


@pytest.mark.parametrize(
    ("name", "multiply_adds"),
    # torchvision's published GFLOPS, which count a multiply-add once.
    [
        ("alexnet", 0.714e9),
        ("vgg16", 15.47e9),
        ("vgg19", 19.63e9),
        ("resnet50-v1.5", 4.09e9),
        ("inception-v3", 5.71e9),
    ],
)
def test_forward_work_agrees_with_published_counts(name: str, multiply_adds: float) -> None:
    """Operations of a forward pass are twice the published multiply-adds."""
    flops = sum(layer.forward.flops for layer in architecture(name).layers)
    assert flops == pytest.approx(2 * multiply_adds, rel=0.005)


def test_gpt2_work_agrees_with_six_operations_for_each_parameter_and_token() -> None:
    """Training costs 6 N operations a token, plus attention's 12 * layers * features * length."""
    network = architecture("gpt2-medium")
    backward = sum(layer.backward.flops for layer in network.layers if layer.backward is not None)
    forward = sum(layer.forward.flops for layer in network.layers)
    products = sum(network.parameters.values()) - network.parameters["wpe.weight"]
    assert forward + backward == pytest.approx(6 * products + 12 * 24 * 1024 * 1024, rel=0.001)


def test_the_first_convolution_computes_no_gradient_of_the_images() -> None:
    """Backward costs as much as forward for the first product, twice as much for the second."""
    first, second = [layer for layer in architecture("vgg16").layers if layer.forward.flops][:2]
    assert first.forward.flops == 2 * (3 * 64 * 3 * 3) * 224 * 224
    assert first.backward is not None
    assert first.backward.flops == first.forward.flops
    assert second.forward.flops == 2 * (64 * 64 * 3 * 3) * 224 * 224
    assert second.backward is not None
    assert second.backward.flops == 2 * second.forward.flops


def test_residual_branches_are_dependencies() -> None:
    """The first unit of a stage feeds its convolution and its shortcut, and sums both gradients."""
    ops = {op.name: op for op in _build("resnet50").ops}
    assert set(ops["fwd/stage2.unit1.add"].deps) == {"fwd/stage2.unit1.conv3", "fwd/stage2.unit1.shortcut"}
    assert set(ops["bwd/stage2.unit1.relu1"].deps) == {"bwd/stage2.unit1.conv1", "bwd/stage2.unit1.shortcut"}
    # An addition has no backward op: what waits for its gradient waits for what follows the addition.
    assert "bwd/stage2.unit2.add" not in ops
    assert ops["bwd/stage2.unit2.conv3"].deps == ("bwd/stage2.unit3.bn1",)


def test_a_gradient_in_two_parts_costs_one_more_read() -> None:
    """Post-activation ResNet: the sum at a unit's input falls to the ReLU that made it."""
    profile = build("resnet50-v1.5", device_tflops=8.0, memory_gbytes_per_s=400.0, batch=32, workers=8)
    duration = {op.name: op.duration_s for op in profile.ops}
    moved = 256 * 56 * 56 * 32 * 4
    # Three moves of its own and one for the second part; the last unit's ReLU has one user only.
    assert duration["bwd/layer1.0.relu3"] == pytest.approx(4 * moved / 400e9, rel=1e-5)
    assert duration["bwd/layer4.2.relu3"] == pytest.approx(3 * (2048 * 49 * 32 * 4) / 400e9, rel=1e-5)


def test_the_encoder_waits_for_every_decoder_layer_that_reads_it() -> None:
    """The gradient of the encoder's result has twelve parts: keys and values of six layers."""
    ops = {op.name: op for op in _build("transformer").ops}
    expected = {f"bwd/decoder.{layer}.cross.{part}" for layer in range(6) for part in "kv"}
    assert set(ops["bwd/encoder.norm"].deps) == expected


def test_a_tied_parameter_is_one_gradient_with_two_consumers() -> None:
    """GPT-2's embedding is ready after the embedding's own backward op, and both users wait for it."""
    profile = _build("gpt2-small", streams=0)
    (tied,) = [gradient for gradient in profile.gradients if gradient.name == "wte.weight"]
    assert tied.producer == "bwd/wte"
    index = {op.name: number for number, op in enumerate(profile.ops)}
    end = profile.graph.end_times()
    assert end[index["bwd/lm_head"]] < end[index["bwd/wte"]]
    assert [op.name for op in profile.ops if "wte.weight" in op.waits_for] == ["fwd/wte", "fwd/lm_head"]


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_listed_as_they_become_ready(name: str) -> None:
    """On one stream, ready times never fall along the list, and every gradient has a consumer."""
    profile = _build(name)
    ready = profile.timing.ready_s.tolist()
    assert ready == sorted(ready)
    assert (profile.timing.tail_s > 0).all()
    assert profile.timing.ready_s.max() < profile.timing.compute_s


def test_a_parameter_keeps_its_size() -> None:
    """Tying layers of different shapes is refused."""
    network = Architecture(unit="tokens")
    x = network.linear("a", network.data(4), 8)
    with pytest.raises(ValueError, match=r'parameter "a\.weight" has two sizes'):
        network.linear("b", x, 8, tied_to="a.weight")
