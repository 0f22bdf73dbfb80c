"""The example in the profiler's documentation runs as it is written."""

import functools
import textwrap

import torch
from torch import nn

import pace.runtime.profiler
from pace.documents.profile import Profile, parse_profile
from tests.runtime.launch import run_ranks


def _run_example(_rank: int, _size: int) -> str:
    _, _, rest = (pace.runtime.profiler.__doc__ or "").partition("::\n\n")
    code, _, _ = rest.partition("\n\nIterations run")
    model = nn.Linear(4, 2)
    # As many runs as exactness needs take a minute.
    quick = functools.partial(pace.runtime.profiler.measure_allreduce, max_runs=3, precision=0.5, pairs=False)
    names = vars(pace.runtime.profiler) | {
        "measure_allreduce": quick,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss_function": nn.functional.mse_loss,
        "loader": [(torch.ones(3, 4), torch.zeros(3, 2))] * 50,
    }
    exec(textwrap.dedent(code), names)
    profile = names["profile"]
    assert isinstance(profile, Profile)
    return profile.model_dump_json()


def test_the_example_runs() -> None:
    """Two ranks capture a loop, measure their network and have a profile each."""
    for document in run_ranks(_run_example, 2):
        profile = parse_profile(document.encode())
        assert profile.workers == 8
        assert {gradient.name for gradient in profile.gradients} == {"weight", "bias"}
