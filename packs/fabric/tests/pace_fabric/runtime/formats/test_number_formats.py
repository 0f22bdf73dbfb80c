"""Rows of numbers in fewer bytes: right roundings, exact cuts, refusals, and errors that are fed back."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pace.errors import InvalidOptions, InvalidUse
from pace_fabric.runtime.formats.error_feedback import ErrorFeedback, NarrowUpdate
from pace_fabric.runtime.formats.number_formats import (
    BLOCK_NUMBERS,
    count,
    cut,
    decode,
    encode,
    encoded_bytes,
)
from pace_fabric.runtime.formats.update_forms import mean_form
from pace_fabric.runtime.sparse_update import SparseUpdate
from pace_fabric.runtime.update_records import NumberFormat

FORMATS: tuple[NumberFormat, ...] = ("float32", "float16", "bfloat16", "int8")
forms = st.sampled_from(FORMATS)
rows = st.integers(0, 3 * BLOCK_NUMBERS).flatmap(
    lambda size: arrays(np.float32, size, elements=st.floats(-60000, 60000, width=32), fill=st.just(0.5))
)


@given(row=rows, form=forms, data=st.data())
@settings(deadline=None, max_examples=200)
def test_parts_of_a_row_keep_their_values(row: np.ndarray, form: NumberFormat, data: st.DataObject) -> None:
    """Sizes are as planned, and any part of a part has the numbers of the whole."""
    whole = encode(row, form)
    assert len(whole) == encoded_bytes(len(row), form)
    assert count(whole, form) == len(row)
    values = decode(whole, form)
    first, last = sorted(data.draw(st.integers(0, len(row))) for _ in range(2))
    part = cut(whole, form, first, last)
    assert np.array_equal(decode(part, form), values[first:last])
    begin, end = sorted(data.draw(st.integers(0, last - first)) for _ in range(2))
    assert np.array_equal(decode(cut(part, form, begin, end), form), values[first + begin : first + end])


@given(row=rows)
@settings(deadline=None)
def test_roundings_are_to_the_nearest(row: np.ndarray) -> None:
    """16 bits as torch rounds; 8 bits within half a step of the block's largest number."""
    tensor = torch.from_numpy(row)
    assert np.array_equal(decode(encode(row, "bfloat16"), "bfloat16"), tensor.bfloat16().float().numpy())
    assert np.array_equal(decode(encode(row, "float16"), "float16"), tensor.half().float().numpy())
    narrow = decode(encode(row, "int8"), "int8")
    for begin in range(0, len(row), BLOCK_NUMBERS):
        block, found = row[begin : begin + BLOCK_NUMBERS], narrow[begin : begin + BLOCK_NUMBERS]
        assert np.abs(found - block).max() <= np.abs(block).max() / 254 * 1.0001 + 1e-37


def test_numbers_beyond_a_format_are_refused() -> None:
    """Neither infinity nor another number comes out."""
    with pytest.raises(InvalidUse, match="beyond float16"):
        encode(np.array([1e5], dtype=np.float32), "float16")
    with pytest.raises(InvalidUse, match="beyond bfloat16"):
        encode(np.array([3.4e38], dtype=np.float32), "bfloat16")
    largest = np.array([np.finfo(np.float32).max, 1e-45], dtype=np.float32)
    assert np.isfinite(decode(encode(largest, "int8"), "int8")).all()
    for wrong in (np.nan, np.inf):
        with pytest.raises(InvalidUse, match="not finite"):
            NarrowUpdate.of(np.array([wrong], dtype=np.float32), "int8")


@pytest.mark.parametrize("size", [0, 1, 3, 5, 9, 1000, 5000])
def test_bytes_that_are_no_row_are_refused(size: int) -> None:
    """Random bytes are refused, or are a row of as many numbers as they have room for."""
    rng = np.random.default_rng(size)
    for _ in range(50):
        data = rng.bytes(size)
        try:
            found = decode(data, "int8")
        except InvalidUse:
            continue
        assert encoded_bytes(len(found), "int8") <= size + 4
    with pytest.raises(InvalidUse, match="no row of float16"):
        count(b"123", "float16")


@pytest.mark.parametrize(
    "feedback",
    [
        lambda: ErrorFeedback("bfloat16"),
        lambda: ErrorFeedback("int8"),
        lambda: ErrorFeedback("float16"),
        lambda: ErrorFeedback(share=0.01),
    ],
)
def test_what_is_left_out_comes_later(feedback: type) -> None:
    """The sum of many small updates arrives, though each alone would vanish."""
    rng = np.random.default_rng(0)
    made = feedback()
    given, sent = np.zeros(3000), np.zeros(3000)
    for _ in range(400):
        update = rng.normal(1e-3, 1e-3, size=3000).astype(np.float32)
        update[0] += 1.0  # beside which the others are small
        given += update
        sent += made.compress(update).dense()
    left = given - sent
    assert np.linalg.norm(left) == pytest.approx(made.left_norm, rel=0.05, abs=1e-3)
    assert np.linalg.norm(left) < 0.3 * np.linalg.norm(given)
    lost = made.compress(np.ones(3000, dtype=np.float32))
    made.take_back(lost)
    assert made.left_norm == pytest.approx(np.linalg.norm(left + 1.0), rel=0.01)


def test_odd_feedback_is_refused() -> None:
    """Shares and formats that do not fit, and updates of another size; what was left out stays."""
    for wrong in ({"form": "int4"}, {"share": 0.0}, {"share": 1.5}, {"form": "int8", "share": 0.5}):
        with pytest.raises(InvalidOptions):
            ErrorFeedback(**wrong)
    feedback = ErrorFeedback("bfloat16")
    feedback.compress(np.full(3, 1.001, dtype=np.float32))
    before = feedback.left_norm
    for update in (np.ones(4), np.full(3, np.nan), np.full(3, 3.4e38)):
        with pytest.raises(InvalidUse):
            feedback.compress(update.astype(np.float32))
    assert feedback.left_norm == before > 0
    whole = ErrorFeedback(share=1.0).compress(np.arange(5, dtype=np.float32))
    assert isinstance(whole, SparseUpdate)
    assert whole.dense().tolist() == [0, 1, 2, 3, 4]


def test_means_keep_the_format_of_16_bits() -> None:
    """Of updates of 8 bits the mean has 16; of different ones 32."""
    assert mean_form(["bfloat16", "bfloat16"]) == "bfloat16"
    assert mean_form(["float16"]) == "float16"
    assert mean_form(["int8", "int8"]) == "bfloat16"
    assert mean_form(["int8", "bfloat16"]) == mean_form(["sparse"]) == mean_form(["float32"]) == "float32"
