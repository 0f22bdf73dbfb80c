"""Clips gradients by their norm, as ``torch.nn.utils.clip_grad_norm_`` does."""

import torch

from pace.errors import InvalidUse
from pace.runtime.argument_checks import is_number, refusal

# torch adds this to the norm before it divides by the norm.
_EPSILON = 1e-6


def coefficient_for(max_norm: float, norm: torch.Tensor) -> torch.Tensor:
    """Return the factor by which torch multiplies gradients with this norm; at most 1."""
    factor: torch.Tensor = max_norm / (norm + _EPSILON)
    return factor.clamp(max=1.0)


def check_norms(max_norm: float, norm_type: float) -> None:
    """Check the arguments of ``clip_grad_norm_``.

    Raises
    ------
    InvalidUse
        If one is not a positive number; the message names it.
    """
    if not is_number(max_norm) or not max_norm > 0:
        raise InvalidUse(str(refusal("max_norm", max_norm, "a positive number")))
    if not is_number(norm_type) or not norm_type > 0:
        raise InvalidUse(str(refusal("norm_type", norm_type, "a positive number, or infinity,")))
