"""Clips gradients by their norm, as ``torch.nn.utils.clip_grad_norm_`` does."""

import math
from collections.abc import Sequence

import torch

from pace.errors import InvalidUse
from pace.runtime.argument_checks import is_number, refusal
from pace.runtime.engine.buffers import Slot
from pace.runtime.optimizer.gradients.gradient_access import GradientAccess

# torch adds this to the norm before it divides by the norm.
_EPSILON = 1e-6


def coefficient_for(max_norm: float, norm: torch.Tensor) -> torch.Tensor:
    """Return the factor by which torch multiplies gradients with this norm; at most 1."""
    factor: torch.Tensor = max_norm / (norm + _EPSILON)
    return factor.clamp(max=1.0)


def clip_in_place(
    slots: Sequence[Slot], access: GradientAccess, max_norm: float, norm_type: float
) -> torch.Tensor:
    """Clip whole gradients and return their norm; clear the gradients if it is not finite."""
    read = [(slot, access.read(slot)) for slot in slots]
    gradients = [gradient for _, gradient in read if gradient is not None]
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        norms = [torch.linalg.vector_norm(each, norm_type, dtype=torch.float64) for each in gradients]
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type).cpu()
        if not math.isfinite(norm):
            for slot, gradient in read:
                if gradient is not None:
                    access.clear(slot)
            return norm
        coefficient = float(coefficient_for(max_norm, norm))
        if coefficient < 1.0:
            torch._foreach_mul_(gradients, coefficient)
    return norm


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
