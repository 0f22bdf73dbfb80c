"""The rows that sparse gradients have, counted while a loop is captured."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pace.documents.profile import Profile
from pace.runtime.capture.touched_rows import TouchedRowsWatch, mean_unions
from pace.runtime.profiler import Capture
from tests.runtime.capture.captures import ALLREDUCE

BATCHES = st.lists(st.sets(st.integers(0, 12)), min_size=1, max_size=6)


@given(BATCHES)
def test_unions_are_the_mean_over_all_choices_of_batches(batches: list[set[int]]) -> None:
    """As counted one by one; with weights, each number counts as much as it weighs."""
    numbers = [np.array(sorted(each), dtype=np.int64) for each in batches]
    found = mean_unions(numbers)
    weighted = mean_unions(numbers, [(each * 2 + 1).astype(np.float64) for each in numbers])
    for count in range(1, len(batches) + 1):
        chosen = [set[int]().union(*some) for some in combinations(batches, count)]
        assert found[count - 1] == pytest.approx(np.mean([len(each) for each in chosen]))
        assert weighted[count - 1] == pytest.approx(
            np.mean([sum(2 * n + 1 for n in each) for each in chosen])
        )


class _Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sparse = nn.EmbeddingBag(50, 4, sparse=True, mode="sum")
        self.twice = nn.Embedding(50, 4, sparse=True)
        self.dense = nn.EmbeddingBag(50, 4, mode="sum")
        self.unused = nn.Embedding(50, 4, sparse=True)

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.sparse(keys) + self.twice(keys).sum(1) + self.dense(keys)
        return out


def _captured() -> Profile:
    """Capture steps of which the n-th uses the keys n and n + 1."""
    model = _Tables()
    step, keys = 0, torch.zeros(1, 3, dtype=torch.int64)
    with Capture(model, None, iterations=3, warmup=1) as capture:
        while not capture.finished:
            model.zero_grad()
            keys.copy_(torch.tensor([[step, step, step + 1]]))  # as loops do that fill one buffer
            model(keys).square().sum().backward()
            capture.step()
            step += 1
    return capture.profile("test", workers=2, allreduce=ALLREDUCE)


def test_a_profile_has_the_rows_of_sparse_gradients() -> None:
    """Two rows a step; two steps share one row if one follows the other. Dense and unused ones have none."""
    gradients = {gradient.name: gradient for gradient in _captured().gradients}
    for name in ("sparse.weight", "twice.weight"):
        touched = gradients[name].touched
        assert touched is not None
        assert touched.rows == 50
        count = len(touched.distinct)  # all iterations, also those that are not captured
        assert touched.distinct[0] == pytest.approx(2)
        assert touched.distinct[1] == pytest.approx(4 - (count - 1) / (count * (count - 1) / 2))
        assert touched.distinct[-1] == pytest.approx(count + 1)
        assert touched.std == 0
    assert gradients["dense.weight"].touched is gradients["unused.weight"].touched is None


def test_passes_of_one_step_touch_their_rows_together() -> None:
    """Two passes of the first step touch three rows, one of the second one of them; the third none."""
    table = nn.EmbeddingBag(10, 2, sparse=True, mode="sum")
    watch = TouchedRowsWatch([("table", table.weight)])
    for passes in ([[1, 2], [2, 3]], [[3]], []):
        watch.begin()
        for keys in passes:
            table(torch.tensor([keys])).sum().backward()
        watch.end()
    touched = watch.found()["table"]
    assert touched.distinct == pytest.approx((4 / 3, (3 + 3 + 1) / 3, 3))
    assert touched.std == pytest.approx(np.std([3, 1, 0]))
