"""Profiles from execution traces alone: counted work of recorded shapes."""

from pathlib import Path
from typing import Any

import pytest

from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import Profile
from pace.errors import FormatError, InvalidOptions
from pace.formats.execution_trace import TracedOp, TracedTensor, read_execution_trace
from pace.formats.reading import FormatWarning
from pace.formats.shaped_steps import CountedWork, product_of, read_execution_trace_profile, work_with_calls
from tests.pace.formats.traces import shaped_execution_trace, write_json

COST = AffineAllReduce(latency_s=1e-3, seconds_per_byte=1e-9)


def _read(folder: Path, document: Any, *, tflops: float = 1e-6, memory: float = 5e-4) -> Profile:
    return read_execution_trace_profile(
        write_json(folder / "et.json", document),
        device_tflops=tflops,
        memory_gbytes_per_s=memory,
        workers=4,
        allreduce=COST,
    )


def test_durations_are_counted_by_hand(tmp_path: Path) -> None:
    """At 10^6 operations and 500,000 bytes a second, memory is slower than 2 x 4 x 20 x 10 operations.

    Bytes: ReLU 320 and 480; addmm 40 + 320 + 800 + 160; mm 320 + 160 + 800 and the bias's sum
    160 + 40. The update moves 3 x 800 and is the linear layer's.
    """
    profile = _read(tmp_path, shaped_execution_trace())
    assert {op.name: op.duration_s for op in profile.ops} == pytest.approx(
        {
            "bwd/000.ReluBackward0": 480 / 5e5,
            "bwd/001.AddmmBackward0": (1280 + 200) / 5e5,
            "bwd/002.TBackward0": 0.0,
            "fwd/000.linear": (1320 + 2400) / 5e5,
            "fwd/001.relu": 320 / 5e5,
        }
    )
    assert profile.metadata["origin"] == "computed"


def test_micro_batches_are_refused(tmp_path: Path) -> None:
    """Each gradient would be there three times."""
    with pytest.raises(FormatError, match="3 backward passes over the same 2 gradients"):
        _read(tmp_path, shaped_execution_trace(micro_batches=3))


@pytest.mark.parametrize(
    ("places", "name", "elements", "reason"),
    [
        ((20,), "c10d::send", 4, "pipeline parallel .*1 sends and receives"),
        ((4,), "c10d::recv_", 4, "pipeline parallel .*one stage that trains alone"),
        ((4, 5), "c10d::allreduce_", 2048, "tensor parallel .*2 all-reduces a step in the forward pass"),
        ((20,), "c10d::_reduce_scatter_base_", 4, "ZeRO .*--exchange sharded"),
        ((21,), "Optimizer.step#ZeroRedundancyOptimizer.step", 4, "ZeRO .*updates of shards"),
        ((15, 19), "other", 4, "has no shape or no producer"),
        ((14, 15, 18, 19), "other", 4, "no gradient is accumulated"),
        ((4, 5), "c10d::allreduce_", 4, None),  # of a loss
        ((20,), "c10d::allreduce_", 2048, None),
    ],
)
def test_a_job_that_sums_no_gradients_is_refused(
    tmp_path: Path, places: tuple[int, ...], name: str, elements: int, reason: str | None
) -> None:
    """As its Kineto trace is, with what to do next."""
    document = shaped_execution_trace()
    for place in places:
        lists = {"values": [], "shapes": [[[elements]]], "types": ["GenericList[Tensor(float)]"]}
        document["nodes"][place] |= {"name": name, "inputs": lists}
    if reason is None:
        assert len(_read(tmp_path, document).gradients) == 2
        return
    with pytest.raises(FormatError, match=reason):
        _read(tmp_path, document)


def test_gradients_that_are_no_tensors_are_left_out(tmp_path: Path) -> None:
    """As of embeddings that a fused kernel updates in the backward pass."""
    document = shaped_execution_trace()
    (bias, _) = (node for node in document["nodes"] if node["name"] == "torch::autograd::AccumulateGrad")
    bias["inputs"] = {"values": [], "shapes": [[]], "types": ["Tensor(nullptr (uninitialized))"]}
    assert [gradient.size_bytes for gradient in _read(tmp_path, document).gradients] == [800]
    assert [tensor.size_bytes for _, tensor in read_execution_trace(tmp_path / "et.json").gradients] == [800]


def test_products_bind_when_memory_is_fast(tmp_path: Path) -> None:
    """2 x 4 x 20 x 10 operations in each direction; the input is data and gets no gradient."""
    profile = _read(tmp_path, shaped_execution_trace(), memory=1e6)
    duration = {op.name: op.duration_s for op in profile.ops}
    assert duration["bwd/001.AddmmBackward0"] == pytest.approx(1600e-6, rel=1e-5)
    assert duration["fwd/000.linear"] == pytest.approx(1600e-6, rel=1e-5)


def test_gradients_are_joined_through_what_backward_ops_called(tmp_path: Path) -> None:
    """The sequence number stands at the node below the engine's; both parameters are the linear layer's."""
    profile = _read(tmp_path, shaped_execution_trace())
    assert [(g.name, g.size_bytes, g.producer) for g in profile.gradients] == [
        ("000.linear/0", 40, "bwd/001.AddmmBackward0"),
        ("000.linear/1", 800, "bwd/002.TBackward0"),
    ]


def test_a_gradient_without_a_forward_op_is_needed_first(tmp_path: Path) -> None:
    """Said, not assumed in silence."""
    document = shaped_execution_trace()
    for node in document["nodes"]:
        if node["name"] == "TBackward0":
            node["attrs"][2]["value"] = 99
    with pytest.warns(FormatWarning, match="1 gradients have no forward op"):
        profile = _read(tmp_path, document)
    assert profile.gradients[1].name == "000.linear/1"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda nodes: nodes.append(dict(nodes[4])), "two nodes have the same id"),
        (lambda nodes: nodes.__delitem__(slice(7, None)), "no step with a forward and a backward pass"),
        (lambda nodes: nodes.__delitem__(slice(None)), 'no "nodes"'),
        (lambda nodes: nodes[15].update(inputs={}), "accumulated that has no shape"),
        (lambda nodes: nodes[4].update(name=5), r"nodes\[4\]: a node needs a name and an id"),
        (lambda nodes: nodes.__delitem__(slice(15, 16)), "accumulated at id 15 has no shape or no producer"),
    ],
)
def test_what_is_no_training_step_is_refused(tmp_path: Path, change: Any, reason: str) -> None:
    """With the node at fault."""
    document = shaped_execution_trace()
    change(document["nodes"])
    with pytest.raises(FormatError, match=reason):
        _read(tmp_path, document)


def test_nodes_that_call_one_another_in_a_cycle_are_refused(tmp_path: Path) -> None:
    """The walk below an op ends."""
    document = shaped_execution_trace()
    document["nodes"][11]["ctrl_deps"] = 13  # AddmmBackward0 called by mm, which it calls
    document["nodes"][9]["ctrl_deps"] = 14
    document["nodes"][10]["ctrl_deps"] = 12
    document["nodes"][11]["ctrl_deps"] = 12
    with pytest.warns(FormatWarning):
        profile = _read(tmp_path, document)
    assert profile.timing.compute_s > 0


def test_rates_must_be_positive(tmp_path: Path) -> None:
    """The option is named."""
    with pytest.raises(InvalidOptions, match="device_tflops is 0"):
        _read(tmp_path, shaped_execution_trace(), tflops=0)


def _op(name: str, inputs: list[tuple[int, ...]], outputs: list[int]) -> TracedOp:
    def tensor(elements: int) -> TracedTensor:
        return TracedTensor(size_bytes=4 * elements, dtype="float32")

    def size(shape: tuple[int, ...]) -> int:
        product = 1
        for side in shape:
            product *= side
        return product

    return TracedOp(
        id=1,
        parent=0,
        name=name,
        record=None,
        sequence=None,
        scope=0,
        inputs=[tensor(size(shape)) for shape in inputs],
        outputs=[tensor(count) for count in outputs],
        shapes=inputs,
    )


@pytest.mark.parametrize(
    ("op", "flops"),
    [
        (_op("aten::mm", [(2, 3), (3, 5)], [10]), 2 * 2 * 3 * 5),
        (_op("aten::addmm", [(5,), (2, 3), (3, 5)], [10]), 2 * 2 * 3 * 5),
        (_op("aten::baddbmm", [(7, 2, 5), (7, 2, 3), (7, 3, 5)], [70]), 2 * 7 * 2 * 3 * 5),
        # 8 images, 6 channels out of 3, 3 x 3, 10 x 10 out
        (_op("aten::convolution", [(8, 3, 10, 10), (6, 3, 3, 3)], [4800]), 2 * 8 * 6 * 3 * 9 * 100),
        # depthwise: each of 6 channels sees one
        (_op("aten::convolution", [(8, 6, 10, 10), (6, 1, 3, 3)], [4800]), 2 * 8 * 6 * 9 * 100),
        (
            _op("aten::convolution_backward", [(8, 6, 10, 10), (8, 3, 10, 10), (6, 3, 3, 3)], [2400, 162, 6]),
            2 * 2 * 8 * 6 * 3 * 9 * 100,
        ),
        # the first layer: no gradient of the images
        (
            _op("aten::convolution_backward", [(8, 6, 10, 10), (8, 3, 10, 10), (6, 3, 3, 3)], [162, 6]),
            2 * 8 * 6 * 3 * 9 * 100,
        ),
        # 2 sequences, 4 heads, 16 queries, 32 keys, 8 features a head
        (
            _op(
                "aten::_scaled_dot_product_flash_attention",
                [(2, 4, 16, 8), (2, 4, 32, 8), (2, 4, 32, 8)],
                [1024],
            ),
            2 * 2 * 2 * 4 * 16 * 32 * 8,
        ),
        (
            _op(
                "aten::_scaled_dot_product_flash_attention_backward",
                [(2, 4, 16, 8), (2, 4, 16, 8), (2, 4, 32, 8), (2, 4, 32, 8)],
                [1024],
            ),
            5 * 2 * 2 * 4 * 16 * 32 * 8,
        ),
    ],
)
def test_products_are_counted_from_shapes(op: TracedOp, flops: float) -> None:
    """Two operations for every multiply-add."""
    product = product_of(op)
    assert product is not None
    assert product.flops == flops


def test_other_ops_move_what_they_read_and_write_and_views_nothing() -> None:
    """Unless what they call moves more."""
    less, more = CountedWork(5.0, 8.0), CountedWork(5.0, 800.0)
    add = _op("aten::add", [(10,), (10,)], [10])
    assert product_of(add) is None
    assert work_with_calls(add, less) == CountedWork(5.0, 120.0)
    assert work_with_calls(add, more) == more
    assert work_with_calls(_op("aten::view", [(10,)], [10]), CountedWork()) == CountedWork()
    assert work_with_calls(_op("AddBackward0", [(10,)], [10]), less) == less
