"""The trained parameters of a model, and the names, sizes and types of their gradients."""

from collections.abc import Set

import torch
from torch import nn

from pace.documents.profile import ELEMENT_BYTES
from pace.errors import InvalidOptions
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
                " that it wraps, and call that one in the loop"
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
        shapes = ", ".join(str(tuple(parameter.shape)) for parameter in list(strangers)[:5])
        raise InvalidOptions(f"the optimizer updates parameters that are not the model's, of shapes {shapes}")
    for name, parameter in named.items():
        plain = issubclass(type(parameter), nn.Parameter)  # isinstance() says what the parameter claims
        if not plain and not (allowed and hasattr(parameter, "placements")):
            raise InvalidOptions(
                f"{name} is a {type(parameter).__name__}; only plain parameters are supported"
            )
        if dtype_name(parameter) not in ELEMENT_BYTES:
            raise InvalidOptions(f"{name} is {dtype_name(parameter)}, which cannot be scheduled")
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
