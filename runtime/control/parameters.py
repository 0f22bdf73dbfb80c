"""The trained parameters of a model, their gradients' names and sizes, and a check that none has changed."""

from collections.abc import Iterable, Set
from operator import is_

import torch
from torch import nn

from pace.documents.profile import ELEMENT_BYTES
from pace.errors import InvalidOptions, InvalidUse
from pace.runtime.engine.buffers import num_bytes
from pace.runtime.engine.plan import GradientSize

# Classes that sum gradients over ranks or devices themselves. By name, as importing FSDP takes a second.
_REDUCING = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule"}


def trained_parameters(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    allowed: Set[str] = frozenset(),
    sums_gradients: bool = True,
) -> dict[str, nn.Parameter]:
    """Return the parameters that the optimizer updates and that require a gradient, in definition order.

    Parameters
    ----------
    allowed
        Names of torch's wrapper classes that the model may contain, as they leave all-reduces to the runtime.
    sums_gradients
        Whether the optimizer gets the dense sums of all ranks' gradients, not the rank's own ones.

    Raises
    ------
    InvalidOptions
        If the model contains another wrapper that sums gradients, the optimizer updates a parameter that is
        not the model's, a parameter has an unsupported type, or the optimizer needs sparse gradients.
    """
    for module in model.modules():
        kinds = {kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch.")}
        if found := (kinds & _REDUCING) - allowed:
            raise InvalidOptions(
                f"the model is, or holds, a {found.pop()}, which reduces gradients itself: give the model"
                " that it wraps, and call that one in the loop; or keep it and use attach()"
            )
    if sums_gradients and isinstance(optimizer, torch.optim.SparseAdam):
        raise InvalidOptions(
            "SparseAdam needs sparse gradients, but the sums of all ranks' gradients are dense: use Adam, or"
            " pace_servers.runtime.asynchronous"
        )
    updated = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    named = {
        name.replace("_orig_mod.", ""): parameter
        for name, parameter in model.named_parameters()
        if parameter in updated
    }
    strangers = updated - set(named.values())
    if strangers:
        shapes = ", ".join(sorted(str(tuple(parameter.shape)) for parameter in strangers)[:5])
        raise InvalidOptions(
            f"the optimizer updates parameters that are not the model's, of shapes {shapes}: make it of the"
            " model's parameters(), or give the model that it updates"
        )
    for name, parameter in named.items():
        plain = issubclass(type(parameter), nn.Parameter)  # isinstance() says what the parameter claims
        if not plain and not (allowed and hasattr(parameter, "placements")):
            raise InvalidOptions(
                f"{name} is a {type(parameter).__name__}; only plain parameters are supported"
            )
        if dtype_name(parameter) not in ELEMENT_BYTES:
            raise InvalidOptions(
                f"{name} is {dtype_name(parameter)}, which cannot be scheduled: use a real type of 16 to 64"
                " bits, for a complex parameter with torch.view_as_complex in the forward pass"
            )
        if (kind := getattr(parameter, "grad_dtype", parameter.dtype)) != parameter.dtype:
            raise InvalidOptions(
                f"{name} is {parameter.dtype} and its grad_dtype is {kind}, but gradients are summed in the"
                " parameter's own dtype: leave grad_dtype as it is"
            )
    return {name: parameter for name, parameter in named.items() if parameter.requires_grad}


def gradient_sizes(parameters: dict[str, nn.Parameter]) -> list[GradientSize]:
    """Return the names, sizes and types of these parameters' gradients, for the fingerprint."""
    return [
        GradientSize(
            name=name,
            size_bytes=num_bytes(parameter),
            dtype=dtype_name(parameter),
        )
        for name, parameter in parameters.items()
    ]


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's dtype in profiles."""
    return str(tensor.dtype).removeprefix("torch.")


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
        self._groups = [list(group["params"]) for group in optimizer.param_groups]
        self._frozen = [parameter for parameter in updated if parameter not in summed]
        self._places = [
            (module, name, parameter, parameter.dtype, parameter.device)
            for module in (() if model is None else model.modules())
            for name, parameter in module._parameters.items()
            if parameter is not None and parameter in summed
        ]

    def refuse_others(self) -> None:
        """Check that a step would update only parameters that the plan covers.

        Raises
        ------
        InvalidUse
            If the optimizer's parameters or their groups have changed, the model has another parameter in the
            place of one, one has another dtype or device, or one that was frozen has a gradient.
        """
        for module, name, parameter, dtype, device in self._places:
            held_there = module._parameters
            # Read without waiting for pending updates. A scripted module keeps its parameters in no
            # dictionary, and none can be put in their place.
            held = dict.get(held_there, name, parameter) if isinstance(held_there, dict) else parameter
            if held is not parameter and held is not None:
                raise InvalidUse(
                    f"a parameter named {name}, of shape {tuple(held.shape)}, has replaced the one that the"
                    " optimizer updates, so it would not be trained: wrap the optimizer after"
                    " load_state_dict(assign=True), or load without assign"
                )
            if parameter.dtype is not dtype or parameter.device != device:
                raise InvalidUse(
                    f"a parameter named {name} was {dtype} on {device} when the optimizer was wrapped, and is"
                    f" {parameter.dtype} on {parameter.device} now: convert and move the model first, then"
                    " wrap the optimizer"
                )
        if self._regrouped:
            raise InvalidUse(
                "the optimizer has other parameters than when it was wrapped, or others in a group, which the"
                " plan does not cover: close() the wrapper, and wrap the changed optimizer"
            )
        for parameter in self._frozen:
            if parameter.grad is not None:
                raise InvalidUse(
                    "a parameter that was frozen when the optimizer was wrapped has a gradient now:"
                    " wrap the optimizer again after changing requires_grad"
                )

    @property
    def changed(self) -> bool:
        """Whether the optimizer's parameters or groups have changed, or a frozen parameter was unfrozen."""
        return self._regrouped or any(parameter.requires_grad for parameter in self._frozen)

    @property
    def _regrouped(self) -> bool:
        groups = self._optimizer.param_groups
        return len(groups) != len(self._groups) or any(
            len(group["params"]) != len(own) or not all(map(is_, group["params"], own))
            for group, own in zip(groups, self._groups, strict=True)
        )

    def clear_frozen(self) -> None:
        """Clear the gradients of parameters that were frozen."""
        for parameter in self._frozen:
            parameter.grad = None
