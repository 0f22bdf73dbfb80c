"""Layers, their shapes, and the work that each does: what an architecture is made of.

An architecture calls the methods of a ``Architecture`` in forward order. Every method computes the shape
of its result and counts the work of both directions; nothing here knows a device, a batch size or a
profile. All counts are for one unit of the batch: an image, or a token.

Counting rules: a product of matrices costs two operations for every multiply-add, forward once,
backward once for the gradient of each operand. Whatever else a layer does is counted in elements
read and written. A bias is added where the product is written, at no further cost.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

BatchUnit = Literal["images", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one direction of a layer does.

    Attributes
    ----------
    flops
        Floating-point operations of matrix products, for one unit of the batch.
    moved
        Elements read and written, for one unit of the batch.
    moved_once
        Elements read and written whatever the batch: parameters and their gradients.
    """

    flops: float = 0.0
    moved: float = 0.0
    moved_once: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """The result of a layer, or data (`layer` is None).

    Attributes
    ----------
    shape
        Of what belongs to one unit of the batch.
    share
        The part of the batch's units that it has: below 1 for one token of each sequence.
    """

    layer: str | None
    shape: tuple[int, ...]
    share: float = 1.0

    @property
    def size(self) -> int:
        """Elements of `shape`."""
        return math.prod(self.shape)

    @property
    def volume(self) -> float:
        """Elements for one unit of the batch, on average."""
        return self.size * self.share

    def part(self, share: float) -> "Value":
        """Return the part that so many of the batch's units have; reading a part is no op."""
        return replace(self, share=share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One forward op and, unless `backward` is None, its backward op.

    Attributes
    ----------
    inputs
        The results that it uses, or parts of them; data is left out.
    parameters
        Names of the parameters that it uses; a parameter may serve several layers.
    output
        Elements of its result, for one unit of the batch.
    """

    name: str
    inputs: tuple[Value, ...]
    parameters: tuple[str, ...]
    output: float
    forward: Work
    backward: Work | None

    @property
    def producers(self) -> tuple[str, ...]:
        """Names of the layers that computed its inputs."""
        return tuple(dict.fromkeys(value.layer for value in self.inputs if value.layer is not None))


class Architecture:
    """An architecture: layers in forward order, and the sizes of their parameters in elements."""

    def __init__(self, *, unit: BatchUnit) -> None:
        self.unit = unit
        self.layers: list[Layer] = []
        self.parameters: dict[str, int] = {}

    def data(self, *shape: int) -> Value:
        """Values that no layer computes and that need no gradient."""
        return Value(layer=None, shape=shape)

    def add_layer(
        self,
        name: str,
        inputs: Sequence[Value],
        shape: tuple[int, ...],
        *,
        forward: Work,
        backward: Work | None,
        parameters: Sequence[tuple[str, int]] = (),
        share: float | None = None,
    ) -> Value:
        """Append a layer and return its result, which has its first input's share of the units."""
        for parameter, size in parameters:
            if self.parameters.setdefault(parameter, size) != size:
                raise ValueError(f'parameter "{parameter}" has two sizes')
        value = Value(layer=name, shape=shape, share=inputs[0].share if share is None else share)
        self.layers.append(
            Layer(
                name=name,
                inputs=tuple(value for value in inputs if value.layer is not None),
                parameters=tuple(parameter for parameter, _ in parameters),
                output=value.volume,
                forward=forward,
                backward=backward,
            )
        )
        return value

    def elementwise(self, name: str, x: Value, *, forward: int = 2, backward: int | None = 3) -> Value:
        """Activation, dropout, softmax, ...: so many elements moved for each element of the result.

        The defaults are read x, write y; read y and dy, write dx. With `backward` None the gradient
        passes unchanged and no op computes it.
        """
        return self.add_layer(
            name,
            [x],
            x.shape,
            forward=Work(moved=forward * x.volume),
            backward=None if backward is None else Work(moved=backward * x.volume),
        )

    def dropout(self, name: str, x: Value) -> Value:
        """Dropout: the mask is written forward and read backward."""
        return self.elementwise(name, x, forward=3, backward=3)

    def scale(self, name: str, x: Value) -> Value:
        """Multiply by a constant."""
        return self.elementwise(name, x, forward=2, backward=2)

    def view(self, name: str, x: Value, *shape: int) -> Value:
        """Another shape for the same elements: an op to the framework, no work for the device."""
        return self.add_layer(name, [x], shape, forward=Work(), backward=Work())

    def transpose(self, name: str, x: Value) -> Value:
        """Copy into another order of dimensions; the layer's order does not matter here."""
        return self.scale(name, x)

    def add(self, name: str, *inputs: Value) -> Value:
        """Sum of values of one shape; every input's gradient is the result's, so backward has no op."""
        (shape,) = {value.shape for value in inputs}
        moved = (len(inputs) + 1) * math.prod(shape)
        return self.add_layer(name, inputs, shape, forward=Work(moved=moved), backward=None)

    def concat(self, name: str, *inputs: Value) -> Value:
        """Join along the first dimension."""
        (rest,) = {value.shape[1:] for value in inputs}
        shape = (sum(value.shape[0] for value in inputs), *rest)
        work = Work(moved=2 * math.prod(shape))
        return self.add_layer(name, inputs, shape, forward=work, backward=work)

    def conv(
        self,
        name: str,
        x: Value,
        channels: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        bias: bool = False,
    ) -> Value:
        """Two-dimensional convolution of (channels, height, width)."""
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        pad_high, pad_wide = (padding, padding) if isinstance(padding, int) else padding
        height = (x.shape[1] + 2 * pad_high - high) // stride + 1
        width = (x.shape[2] + 2 * pad_wide - wide) // stride + 1
        weights = x.shape[0] * channels * high * wide
        parameters = [(f"{name}.weight", weights)] + [(f"{name}.bias", channels)] * bias
        return self._product(name, x, (channels, height, width), 2.0 * weights * height * width, parameters)

    def linear(
        self, name: str, x: Value, features: int, *, bias: bool = True, tied_to: str | None = None
    ) -> Value:
        """Product of the last dimension with a weight, its own or another layer's."""
        weights = x.shape[-1] * features
        parameters = [(tied_to or f"{name}.weight", weights)] + [(f"{name}.bias", features)] * bias
        return self._product(name, x, (*x.shape[:-1], features), 2.0 * x.volume * features, parameters)

    def _product(
        self, name: str, x: Value, shape: tuple[int, ...], flops: float, parameters: Sequence[tuple[str, int]]
    ) -> Value:
        held = sum(size for _, size in parameters)
        operands = 1 if x.layer is None else 2  # data needs no gradient
        moved = x.volume + math.prod(shape) * x.share
        return self.add_layer(
            name,
            [x],
            shape,
            forward=Work(flops=flops, moved=moved, moved_once=held),
            backward=Work(flops=operands * flops, moved=operands * moved, moved_once=operands * held),
            parameters=parameters,
        )

    def matmul(self, name: str, left: Value, right: Value, features: int, *, inner: int) -> Value:
        """Product of two results: `features` values per unit, each a sum over `inner` terms."""
        flops = 2.0 * features * inner
        moved = left.size + right.size + features
        return self.add_layer(
            name,
            [left, right],
            (features,),
            forward=Work(flops=flops, moved=moved),
            backward=Work(flops=2 * flops, moved=2 * moved),
        )

    def batch_norm(self, name: str, x: Value) -> Value:
        """Batch normalization: statistics need a pass of their own in both directions."""
        return self._norm(name, x, x.shape[0], forward=3, backward=5)

    def layer_norm(self, name: str, x: Value) -> Value:
        """Layer normalization over the last dimension, whose statistics stay on chip."""
        return self._norm(name, x, x.shape[-1], forward=2, backward=3)

    def _norm(self, name: str, x: Value, features: int, *, forward: int, backward: int) -> Value:
        return self.add_layer(
            name,
            [x],
            x.shape,
            forward=Work(moved=forward * x.volume, moved_once=2 * features),
            backward=Work(moved=backward * x.volume, moved_once=4 * features),
            parameters=[(f"{name}.weight", features), (f"{name}.bias", features)],
        )

    def max_pool(self, name: str, x: Value, kernel: int, *, stride: int, padding: int = 0) -> Value:
        """Maximum over windows; backward reads x again to find where each maximum was."""
        shape = _pooled(x, kernel, stride, padding)
        moved = x.size + math.prod(shape)
        return self.add_layer(
            name, [x], shape, forward=Work(moved=moved), backward=Work(moved=moved + x.size)
        )

    def avg_pool(self, name: str, x: Value, kernel: int, *, padding: int = 0) -> Value:
        """Mean over windows that are one apart."""
        shape = _pooled(x, kernel, 1, padding)
        work = Work(moved=x.size + math.prod(shape))
        return self.add_layer(name, [x], shape, forward=work, backward=work)

    def embedding(self, name: str, tokens: Value, entries: int, features: int) -> Value:
        """Look rows up; backward writes the whole table's gradient, for it is all-reduced dense."""
        return self.add_layer(
            name,
            [tokens],
            (features,),
            forward=Work(moved=2 * features),
            backward=Work(moved=2 * features, moved_once=entries * features),
            parameters=[(f"{name}.weight", entries * features)],
        )

    def lstm_cell(
        self, name: str, weights: str, x: Sequence[Value], state: Sequence[Value], features: int
    ) -> Value:
        """One time step of an LSTM whose parameters, called `weights`, serve every step.

        Backward adds each step's share to the weights' gradients: reads the weights, reads and
        writes their gradients.
        """
        inputs = sum(value.size for value in x)
        share = x[0].share
        parameters = [
            (f"{weights}.i2h_weight", 4 * features * inputs),
            (f"{weights}.i2h_bias", 4 * features),
            (f"{weights}.h2h_weight", 4 * features * features),
            (f"{weights}.h2h_bias", 4 * features),
        ]
        held = sum(size for _, size in parameters)
        flops = 2.0 * 4 * features * (inputs + features) * share
        moved = (inputs + 12 * features) * share  # x, two states, four gates out and in, two states
        return self.add_layer(
            name,
            [*x, *state],
            (features,),
            forward=Work(flops=flops, moved=moved, moved_once=held),
            backward=Work(flops=2 * flops, moved=2 * moved, moved_once=3 * held),
            parameters=parameters,
        )

    def stack(self, name: str, *steps: Value) -> Value:
        """Join the time steps of one or several recurrent layers into one value per token."""
        features = round(sum(value.volume for value in steps))
        work = Work(moved=2 * features)
        return self.add_layer(name, steps, (features,), forward=work, backward=work, share=1.0)

    def softmax_loss(self, name: str, x: Value) -> Value:
        """Cross-entropy of a softmax over the last dimension."""
        work = Work(moved=2 * x.volume)
        return self.add_layer(name, [x], (1,), forward=work, backward=work)


def _pooled(x: Value, kernel: int, stride: int, padding: int) -> tuple[int, ...]:
    return (x.shape[0], *((side + 2 * padding - kernel) // stride + 1 for side in x.shape[1:]))
