"""The parameters of an optimizer that the plan covers, and a check that they have not changed."""

from collections.abc import Iterable

import torch
from torch import nn

from pace.errors import InvalidUse


class PlannedParameters:
    """The parameters that an optimizer had when it was wrapped.

    Parameters
    ----------
    planned
        The parameters whose gradients are summed. The others were frozen.
    model
        The module that holds them; None if a framework replaces them in each pass.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, planned: Iterable[nn.Parameter], model: nn.Module | None
    ) -> None:
        self._optimizer = optimizer
        summed = set(planned)
        updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._num_updated = len(updated)
        self._frozen = [parameter for parameter in updated if parameter not in summed]
        self._places = [
            (module, name, parameter)
            for module in (() if model is None else model.modules())
            for name, parameter in module._parameters.items()
            if parameter is not None and parameter in summed
        ]

    def refuse_others(self) -> None:
        """Check that a step would update only parameters that the plan covers.

        Raises
        ------
        InvalidUse
            If the optimizer's parameters have changed, the model has another parameter in the place of one,
            or one that was frozen has a gradient.
        """
        for module, name, parameter in self._places:
            held_there = module._parameters
            # Past the gate of gated parameters. A scripted module keeps its parameters in no dictionary, and
            # none can be put in their place.
            held = dict.get(held_there, name, parameter) if isinstance(held_there, dict) else parameter
            if held is not parameter and held is not None:
                raise InvalidUse(
                    f"a parameter named {name}, of shape {tuple(held.shape)}, has replaced the one that the"
                    " optimizer updates, so it would not be trained: wrap the optimizer after"
                    " load_state_dict(assign=True), or load without assign"
                )
        if self._grown:
            raise InvalidUse(
                "the optimizer has other parameters than when it was wrapped, which the plan does not cover:"
                " wrap it again after add_param_group"
            )
        for parameter in self._frozen:
            if parameter.grad is not None:
                raise InvalidUse(
                    "a parameter that was frozen when the optimizer was wrapped has a gradient now:"
                    " wrap the optimizer again after changing requires_grad"
                )

    @property
    def changed(self) -> bool:
        """Return whether a step would be refused now, or after the next backward pass."""
        return self._grown or any(parameter.requires_grad for parameter in self._frozen)

    @property
    def _grown(self) -> bool:
        return sum(len(group["params"]) for group in self._optimizer.param_groups) != self._num_updated

    def clear_frozen(self) -> None:
        """Clear the gradients of parameters that were frozen."""
        for parameter in self._frozen:
            parameter.grad = None
