"""Features that the installed torch is too old for are refused in one line; published minimums are true."""

import importlib
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.torch_version import TorchVersion

from pace.errors import InvalidUse
from pace.runtime import fsdp
from pace.runtime.torch import DistributedOptimizer
from pace.runtime.transports.torch_versions import HSDP, MINIMUMS, PLANNER, TRAINING, require_torch

ROOT = Path(__file__).parents[2]


def wrap(model: nn.Module) -> None:
    """Wrap an optimizer."""
    DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)


def attach(model: nn.Module) -> None:
    """Attach to a model in ``fully_shard``."""
    fsdp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))


def apply(model: nn.Module) -> None:
    """Shard a model by the simplest settings."""
    fsdp.apply(model, fsdp.Fsdp2Settings())


def apply_buffers(model: nn.Module) -> None:
    """Shard a model by settings that only new versions have."""
    fsdp.apply(model, fsdp.Fsdp2Settings(max_input_buffers=2))


@pytest.mark.parametrize(
    ("call", "version", "message"),
    [
        (wrap, "2.7.1+cu126", "pace.runtime needs torch >= 2.8, this is 2.7.1+cu126"),
        (apply, "2.6.0", "pace.runtime.fsdp.apply needs torch >= 2.8, this is 2.6.0"),
        (attach, "2.8.0+cpu", "pace.runtime.fsdp.attach needs torch >= 2.9, this is 2.8.0+cpu"),
        (apply_buffers, "2.12.1", "separate_reduce_scatter_group needs torch >= 2.13, this is 2.12.1"),
    ],
)
def test_old_versions_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[nn.Module], None], version: str, message: str
) -> None:
    """The line names the feature, the version that it needs and the one that is installed."""
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
    kinds = [type(module) for module in model.modules()]
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    with pytest.raises(InvalidUse, match=re.escape(message)) as caught:
        call(model)
    assert "\n" not in str(caught.value)
    assert [type(module) for module in model.modules()] == kinds  # not sharded


def test_the_planner_is_refused_when_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its modules import what older versions do not have."""
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.9.1"))
    monkeypatch.delitem(sys.modules, PLANNER, raising=False)
    with pytest.raises(ImportError, match=re.escape("pace.runtime.inductor needs torch >= 2.10")):
        importlib.import_module(PLANNER)


@pytest.mark.parametrize(
    ("feature", "version"), [(HSDP, "2.10.0"), (PLANNER, "2.11.0a0+5228986c39.nv25.06"), (TRAINING, "3.0.0")]
)
def test_new_versions_are_accepted(monkeypatch: pytest.MonkeyPatch, feature: str, version: str) -> None:
    """Numbers are compared, not texts, and builds before a release count as that release."""
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    require_torch(feature)


def test_published_minimums_are_those_that_are_checked() -> None:
    """In the table of docs/reference/compatibility.md, and in the extras of the package."""
    page = (ROOT / "docs/reference/compatibility.md").read_text()
    table = page.split("## Versions of torch")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| (.*?)(?: \(.*\))? \| ([\d.]+) \|$", table, re.MULTILINE))
    stated = {name.replace("`", ""): version for name, version in rows.items()}
    assert stated == {name: f"{major}.{minor}" for name, (major, minor) in MINIMUMS.items()}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = {each for extra in extras.values() for each in extra if each.startswith("torch>=")}
    assert needed == {f"torch>={stated[TRAINING]}"}
