"""Gates in front of a model's parameters: which uses are noticed, and when."""

import copy
import pickle

import torch
from torch import nn

from pace.runtime.control.parameters import gradient_sizes
from pace.runtime.engine.buffers import Slot, build_groups
from pace.runtime.engine.plan import plan_locally
from pace.runtime.gates.parameter_gates import Attention, ForwardWatch


class _Bench:
    """A watched model, and what the watch has noticed."""

    def __init__(self, model: nn.Module) -> None:
        self.used: list[str] = []
        self.entered = 0
        self.attention = Attention()
        parameters = dict(model.named_parameters())
        groups = build_groups(plan_locally(gradient_sizes(parameters)), parameters, num_ranks=1)
        self.slots = {slot.name: slot for group in groups for slot in group.slots}
        self.watch = ForwardWatch(
            model,
            {slot.parameter: slot for slot in self.slots.values()},
            attention=self.attention,
            use=lambda slots: self.used.extend(slot.name for slot in slots),
            enter=self._enter,
        )

    def _enter(self) -> None:
        self.entered += 1


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_a_forward_pass_uses_every_parameter_in_order() -> None:
    """As a module reads them."""
    model = _model()
    bench = _Bench(model)
    model(torch.ones(1, 3))
    assert bench.entered == 1
    first_of_second = bench.used.index("2.weight")
    assert set(bench.used[:first_of_second]) == {"0.weight", "0.bias"}
    assert set(bench.used) == set(bench.slots)


def test_listing_parameters_uses_none() -> None:
    """Their guards notice what is done with them."""
    model = _model()
    bench = _Bench(model)
    assert len(list(model.parameters())) == 4
    assert len(model.state_dict(keep_vars=True)) == 4
    assert bench.used == []


def test_reading_one_parameter_uses_only_that_one() -> None:
    """From outside of the module that owns it too."""
    model = _model()
    bench = _Bench(model)
    assert model[2].weight.shape == (2, 4)
    assert bench.used == ["2.weight"]


def test_nothing_is_called_without_need() -> None:
    """While no update is pending, a forward pass only enters."""
    model = _model()
    bench = _Bench(model)
    bench.attention.needed = False
    model(torch.ones(1, 3))
    assert (bench.used, bench.entered) == ([], 1)


def test_copies_and_pickles_are_not_watched() -> None:
    """They have parameters of their own in a plain dict, and their forward passes call nothing."""
    model = _model()
    bench = _Bench(model)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        bench.used.clear()
        bench.entered = 0
        copied(torch.ones(1, 3))
        assert (bench.used, bench.entered) == ([], 0)
        assert type(copied[0]._parameters) is dict


def test_close_leaves_the_model_as_it_was() -> None:
    """Plain dicts and no hooks; what was added to a dict meanwhile stays."""
    model = _model()
    bench = _Bench(model)
    model[0].register_parameter("extra", nn.Parameter(torch.ones(1)))
    bench.watch.close()
    assert all(type(module._parameters) is dict for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert "extra" in dict(model[0].named_parameters())
    model(torch.ones(1, 3))
    assert bench.used == []


def test_tied_weights_are_one_slot() -> None:
    """Whichever module reads the weight, its one slot is used."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    bench = _Bench(model)
    slots: list[Slot] = list(bench.slots.values())
    assert len(slots) == 1
    model[1](torch.ones(1, 3))
    assert set(bench.used) == {slots[0].name}
