"""Settings of FSDP2 are in force, train to the same bits, and are refused where they do not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.debug import CommDebugMode

from pace.errors import InvalidOptions, InvalidUse
from pace.runtime.engine.shard_units import units_of
from pace.runtime.fsdp import Fsdp2Settings, apply
from pace.runtime.gates.fsdp2_settings import blocks_of
from pace.runtime.transports.torch_versions import MINIMUMS, SCATTER_SETTINGS
from pace.simulation.graph.fsdp2_planner import plan_fsdp2
from tests.runtime.fsdp.job import Net
from tests.runtime.rank_pool import RankPool
from tests.sharded_graphs import backward, forward, graph_of, held_up

NEEDED = ".".join(map(str, MINIMUMS[SCATTER_SETTINGS]))
IS_NEW = torch.__version__ >= NEEDED
BUFFERS = 2 if IS_NEW else 1
SETTINGS = Fsdp2Settings(forward_ahead=2, backward_ahead=2, max_input_buffers=BUFFERS)
VARIANTS = (
    Fsdp2Settings(),
    SETTINGS,
    Fsdp2Settings(blocks_per_unit=2, max_input_buffers=3 if IS_NEW else 1),
    Fsdp2Settings(separate_reduce_scatter_group=IS_NEW, reshard_after_forward=False),
    Fsdp2Settings(kept_units=(1,), backward_ahead=2),
)


def trained(rank: int, model: nn.Module) -> list[torch.Tensor]:
    """Train for three steps; return the whole weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 6, generator=generator)).square().sum().backward()
        optimizer.step()
    return [each.full_tensor().detach().clone() for each in model.parameters()]  # type: ignore[attr-defined]  # DTensors


def net() -> Net:
    """Return the same model each time."""
    torch.manual_seed(3)
    return Net()


def compare(rank: int) -> list[str]:
    """Train by each variant and by torch's defaults; return the settings whose weights differ."""
    plain = net()
    for block in plain.blocks:
        fully_shard(block)
    fully_shard(plain)
    expected = trained(rank, plain)
    wrong = []
    for settings in VARIANTS:
        model = net()
        apply(model, settings)
        found = trained(rank, model)
        if not all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)):
            wrong.append(settings.model_dump_json())
    return wrong


def gathers_of(rank: int, folder: str) -> list[int]:
    """Train with planned settings; return the all-gathers of a step, and whether weights are torch's own."""
    counts = []
    weights = []
    for settings in (Path(folder) / "planned.json", Fsdp2Settings()):
        model = net()
        apply(model, settings)
        weights.append(trained(rank, model))
        with CommDebugMode() as calls:  # type: ignore[no-untyped-call]  # torch has no types for it
            model(torch.ones(4, 6)).sum().backward()
        counts.append(sum(count for op, count in calls.get_comm_counts().items() if "allgather" in str(op)))
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))
    return counts


def own_group_of(rank: int, folder: str) -> tuple[bool, bool]:
    """Train by planned settings; return whether gathers and scatters have two groups, and torch's weights."""
    plain, model = net(), net()
    apply(plain, Fsdp2Settings())
    apply(model, Path(folder) / "planned.json")
    groups = [unit.group for unit in units_of(model)]
    two = all(group._reduce_scatter_process_group is not group._all_gather_process_group for group in groups)
    pairs = zip(trained(rank, plain), trained(rank, model), strict=True)
    return two, all(torch.equal(one, other) for one, other in pairs)


def settings_in_force(_rank: int, folder: str) -> dict[str, Any]:
    """Apply settings of a file to a model, and read them back from torch's states."""
    path = Path(folder) / "settings.json"
    model = net()
    units = apply(model, path)
    assert isinstance(model, FSDPModule)
    states = [unit._get_fsdp_state() for unit in units]
    root = model._get_fsdp_state()

    def numbers(found: Any) -> list[int]:
        return [states.index(state) for state in found]

    of_root, *of_blocks = units_of(model)
    groups = [unit.group for unit in (*of_blocks, of_root)]
    return {
        "forward": [numbers(state._states_to_forward_prefetch) for state in (*states, root)],
        "backward": [numbers(state._states_to_backward_prefetch) for state in (*states, root)],
        "buffers": {getattr(group, "reduce_scatter_max_input_buffers", 1) for group in groups},
        "reshards": [group.post_forward_mesh_info is not None for group in groups],
        "blocks": [len(group.modules) for group in groups],
    }


def applied_to_sharded(rank: int) -> list[str]:
    """Apply settings to a model that is sharded; return what is refused."""
    model = net()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    refused = []
    for settings, options in ((Fsdp2Settings(blocks_per_unit=2), {}), (SETTINGS, {"mp_policy": None})):
        with pytest.raises(InvalidOptions) as caught:
            apply(model, settings, **options)
        refused.append(str(caught.value))
    assert len(apply(model, SETTINGS)) == 3
    trained(rank, model)
    half = net()
    fully_shard(half.blocks[0])
    with pytest.raises(InvalidUse) as misuse:
        apply(half, SETTINGS)
    return [*refused, str(misuse.value)]


def test_weights_are_those_of_torchs_defaults(pool: RankPool) -> None:
    """To the bit on two ranks, for units of several blocks, more buffers and a group of its own."""
    assert pool.results(compare) == [[], []]


def test_planned_units_are_gathered_once(pool: RankPool, tmp_path: Path) -> None:
    """A kept unit has one all-gather a step instead of two, and the weights are the same to the bit."""
    planned = plan_fsdp2([graph_of(forward(3)), graph_of(backward(3))], 10**6, unit_collectives=1)
    assert (planned.blocks_per_unit, planned.kept_units) == (1, (2,))
    (tmp_path / "planned.json").write_bytes(planned.to_json())
    assert pool.results(gathers_of, str(tmp_path)) == [[6, 7], [6, 7]]


@pytest.mark.skipif(not IS_NEW, reason=f"needs torch {NEEDED}")
def test_planned_reduce_scatters_have_a_group_of_their_own(pool: RankPool, tmp_path: Path) -> None:
    """Where the planner chooses it, in every unit and in the root; the weights are the same to the bit."""
    planned = plan_fsdp2([held_up()], unit_collectives=1)
    assert planned.separate_reduce_scatter_group
    (tmp_path / "planned.json").write_bytes(planned.to_json())
    assert pool.results(own_group_of, str(tmp_path)) == [(True, True), (True, True)]


def test_kept_units_are_not_gathered_ahead(pool: RankPool, tmp_path: Path) -> None:
    """Only the others count; a unit that the model does not have is refused."""
    settings = Fsdp2Settings(kept_units=(1,), backward_ahead=1)
    (tmp_path / "settings.json").write_bytes(settings.to_json())
    for found in pool.results(settings_in_force, str(tmp_path)):
        assert found["backward"] == [[], [0], [0], [2]]
        assert found["reshards"][:3] == [True, False, True]
    with pytest.raises(InvalidOptions, match="has unit 3, and the model has 3 units"):
        apply(net(), Fsdp2Settings(kept_units=(3,)))


def test_settings_are_in_force(pool: RankPool, tmp_path: Path) -> None:
    """Units are gathered two ahead in both directions, two buffers are kept, and blocks are freed."""
    (tmp_path / "settings.json").write_bytes(SETTINGS.to_json())
    for found in pool.results(settings_in_force, str(tmp_path)):
        assert found["forward"] == [[1, 2], [2], [], [0, 1]]
        assert found["backward"] == [[], [0], [1, 0], [2, 1]]
        assert found["buffers"] == {BUFFERS}
        assert found["reshards"][:3] == [True, True, True]
        assert found["blocks"] == [1, 1, 1, 1]


def test_units_of_two_blocks_are_sharded_together(pool: RankPool, tmp_path: Path) -> None:
    """Three blocks are two units."""
    settings = Fsdp2Settings(blocks_per_unit=2, reshard_after_forward=False)
    (tmp_path / "settings.json").write_bytes(settings.to_json())
    for found in pool.results(settings_in_force, str(tmp_path)):
        assert found["blocks"] == [2, 1, 1]
        assert found["reshards"][:2] == [False, False]


def test_sharded_models_keep_their_units(pool: RankPool) -> None:
    """What would need other units is refused, and the rest is set."""
    for found in pool.results(applied_to_sharded):
        assert "2 blocks in a unit" in found[0]
        assert "mp_policy: the model is sharded already" in found[1]
        assert "not with the model" in found[2]


def test_blocks_are_found_or_asked_for() -> None:
    """The largest list of one type is taken; without one, or with other modules, the message says why."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ModuleList(nn.Linear(3, 3) for _ in range(2)), nn.Tanh())
    assert [type(block) for block in blocks_of(model)] == [nn.Linear, nn.Linear]
    with pytest.raises(InvalidOptions, match="no list of blocks of one type"):
        apply(nn.Linear(2, 2), Fsdp2Settings())
    with pytest.raises(InvalidOptions, match=r"blocks\[0\] \(Tanh\) is no module inside"):
        apply(model, Fsdp2Settings(), blocks=[nn.Tanh()])
    with pytest.raises(InvalidOptions, match="listed twice"):
        apply(model, Fsdp2Settings(), blocks=[model[0], model[0]])
    with pytest.raises(InvalidOptions, match="Fsdp2Settings"):
        apply(model, {"forward_ahead": 1})  # type: ignore[arg-type]  # what is no document
