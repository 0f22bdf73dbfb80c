"""Models of the validation: how sizes are spread over layers, scaled down to a total."""

from dataclasses import dataclass

# Parameters of each layer in thousands; the sizes' distribution is what matters, not their sum.
_THOUSANDS: dict[str, tuple[int, ...]] = {
    "alexnet": (35, 307, 885, 664, 442, 37753, 16781, 4097),
    "inception": (1, 9, 18, 5, 138, 255, 277, 388, 1152, 1296, 1698, 1698, 2143, 1737, 5047, 6074, 2049),
    "vgg": (2, 37, 74, 148, 295, 590, 590, 1180, 2360, 2360, 2360, 2360, 2360, 102764, 16781, 4097),
}
SHAPES = tuple(_THOUSANDS)
# No model: few layers, none of them small, so that the end of each is that of a transfer.
_THOUSANDS["four"] = (5000, 500, 2500, 1000)
ALL_SHAPES = tuple(_THOUSANDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Bytes of every layer, and mean seconds of its two passes."""

    name: str
    layers: tuple[int, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]


def shape_of(name: str, *, total_bytes: float, ratio: float, bytes_per_s: float) -> ModelShape:
    """Return a model whose transfers take `ratio` times as long as its compute, on a link of its own.

    Compute is spread over layers evenly, two thirds of it in the backward pass.
    """
    thousands = _THOUSANDS[name]
    scale = total_bytes / sum(thousands)
    layers = tuple(max(4 * round(size * scale / 4), 4) for size in thousands)
    compute_s = 2 * sum(layers) / bytes_per_s / ratio
    each = compute_s / len(layers)
    return ModelShape(
        name=name,
        layers=layers,
        forward_s=(each / 3,) * len(layers),
        backward_s=(2 * each / 3,) * len(layers),
    )
