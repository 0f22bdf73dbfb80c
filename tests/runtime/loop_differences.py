"""Compares what loops saw with and without PACE."""

from collections.abc import Iterator
from typing import Any

import torch

from tests.runtime.rank_pool import Failed


def differences(left: Any, right: Any, near: float, path: str = "") -> Iterator[str]:
    """Say where two things that a loop saw are not the same."""
    if isinstance(right, dict):
        if left.keys() != right.keys():
            yield f"{path}: {left.keys()}"
        else:
            yield from (d for key in right for d in differences(left[key], right[key], near, f"{path}/{key}"))
    elif isinstance(right, list | tuple):
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from differences(one, other, near, f"{path}/{number}")
    elif isinstance(right, torch.Tensor):
        if not isinstance(left, torch.Tensor) or not torch.allclose(left, right, rtol=near, atol=near):
            yield path
    elif left != right:
        yield f"{path}: {left!r} instead of {right!r}"


def check(found: list[Any]) -> None:
    """Fail where a rank failed or saw a difference."""
    for rank, each in enumerate(found):
        assert not isinstance(each, Failed), each.reason
        assert each, "nothing was compared"
        assert not {name: said for name, said in each.items() if said}, f"rank {rank}"
