"""The weights of the study."""

import torch


def model_state(megabytes: int, seed: int) -> dict[str, torch.Tensor]:
    """Return bfloat16 weights in the shapes of a transformer: matrices of layers, and norms."""
    random = torch.Generator().manual_seed(seed)
    layers, width = 24, 1024 if megabytes >= 203 else 128
    hidden = max((megabytes * 10**6 // 2 // layers - 4 * width * width) // (3 * width), 8)
    shapes: dict[str, tuple[int, int]] = {}
    for layer in range(layers):
        shapes |= {f"layers.{layer}.{name}": (width, width) for name in ("q", "k", "v", "o")}
        shapes |= {f"layers.{layer}.{name}": (hidden, width) for name in ("up", "gate", "down")}
        shapes |= {f"layers.{layer}.{name}": (1, width) for name in ("norm1", "norm2")}
    return {
        name: torch.randint(-(2**15), 2**15, shape, generator=random, dtype=torch.int16).view(torch.bfloat16)
        for name, shape in shapes.items()
    }


def same_state(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Return whether two states are equal to the bit."""
    return left.keys() == right.keys() and all(
        torch.equal(left[name].view(torch.int16), tensor.view(torch.int16)) for name, tensor in right.items()
    )
