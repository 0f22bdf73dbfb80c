"""The number with which a rank says how its round went."""

import itertools

import pytest
import torch

from pace.runtime.optimizer.round_marks import (
    RoundCode,
    disagreement,
    may_keep,
    substitute_for_idle,
)


def _code(
    *,
    late: bool = False,
    read: bool = False,
    idle: bool = False,
    kept: bool = False,
    loaded: bool = False,
    step: int = 0,
) -> RoundCode:
    return RoundCode(late=late, read=read, idle=idle, kept=kept, loaded=loaded, step=step)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_every_number_survives_every_dtype(dtype: torch.dtype) -> None:
    """Also divided by a scale and multiplied by it again, as over Horovod."""
    for late, read, idle, kept, loaded in itertools.product([False, True], repeat=5):
        for step in range(2):
            code = _code(late=late, read=read, idle=idle, kept=kept, loaded=loaded, step=step)
            for scale in (1.0, 1 / 3, 7.0):
                sent = torch.tensor(int(code) / scale, dtype=dtype) * scale
                assert RoundCode.decode(round(float(sent))) == code


def test_ranks_in_different_steps_are_named() -> None:
    """The message names a rank that is elsewhere; agreement gives none."""
    assert disagreement([_code(step=1), _code(step=1)]) == ""
    assert "rank 1" in disagreement([_code(step=0), _code(step=1)])


def test_one_reader_stands_in_for_ranks_without_gradients() -> None:
    """Nobody does where every rank has some, or nobody has read any."""
    assert substitute_for_idle([_code(read=True), _code(read=True)]) is None
    assert substitute_for_idle([_code(), _code(idle=True)]) is None
    assert substitute_for_idle([_code(idle=True), _code(), _code(read=True)]) == 2
    assert substitute_for_idle([_code(idle=True, read=True), _code(idle=True)]) is None


def test_all_ranks_know_who_may_keep_gradients() -> None:
    """One that says so; and any reader beside a rank that found none to keep."""
    assert may_keep([_code(), _code(kept=True)])
    assert may_keep([_code(idle=True), _code(read=True)])
    assert not may_keep([_code(read=True), _code(read=True)])
    assert not may_keep([_code(idle=True), _code()])
