"""The architectures by name, and profiles computed from them."""

from collections.abc import Callable
from functools import partial

from pace.device_rates import DeviceRates
from pace.documents.collective_costs import AllReduce
from pace.documents.profile import DType, Profile
from pace.errors import InvalidOptions
from pace.models.image_networks import (
    alexnet,
    inception_v3,
    resnet50_preactivation,
    resnet50_v15,
    vgg16,
    vgg19,
)
from pace.models.language_networks import bert_large, gpt2, seq2seq, transformer
from pace.models.layers import Architecture
from pace.models.window import LayerTimes, Streams, default_allreduce, window

_ARCHITECTURES: dict[str, Callable[[], Architecture]] = {
    "alexnet": alexnet,
    "vgg16": vgg16,
    "vgg19": vgg19,
    "resnet50": resnet50_preactivation,
    "resnet50-v1.5": resnet50_v15,
    "inception-v3": inception_v3,
    "seq2seq": seq2seq,
    "transformer": transformer,
    "bert-large": bert_large,
    "gpt2-small": partial(gpt2, layers=12, features=768),
    "gpt2-medium": partial(gpt2, layers=24, features=1024),
    "gpt2-large": partial(gpt2, layers=36, features=1280),
    "gpt2-xl": partial(gpt2, layers=48, features=1600),
}

NAMES = tuple(_ARCHITECTURES)


def architecture(name: str) -> Architecture:
    """Return the layers of an architecture by its name in ``NAMES``; raises InvalidOptions."""
    try:
        return _ARCHITECTURES[name.lower()]()
    except KeyError:
        raise InvalidOptions(f'no architecture "{name}": choose one of {", ".join(NAMES)}') from None


def build(
    name: str,
    *,
    device_tflops: float,
    batch: int,
    workers: int,
    allreduce: AllReduce | None = None,
    memory_gbytes_per_s: float | None = None,
    dtype: DType = "float32",
    streams: Streams = 1,
) -> Profile:
    """Compute a profile from an architecture's layer shapes.

    Parameters
    ----------
    name
        One of ``NAMES``, in any case.
    device_tflops
        10^12 floating-point operations that one device sustains in matrix products in a second;
        half of the data sheet's figure is a common outcome.
    batch
        Images of one device in one iteration, or tokens for the language models; a sequence's
        length belongs to the architecture. For translation models, tokens of each language.
    workers
        Devices that train together.
    allreduce
        What an all-reduce costs; by default a ring at 10 Gb/s with 0.3 ms latency in all.
    memory_gbytes_per_s
        10^9 bytes read and written in a second by layers that are not matrix products; by default
        40 for every TFLOPS.
    dtype
        Of activations, parameters and gradients.
    streams
        1: one compute stream. 0: none, parallel branches overlap freely (the PACE paper's
        assumption). 2: two streams, each op on the one that can start it first.

    Returns
    -------
    Profile
        Its gradients in the order in which they become ready. Optimizer updates take no time.

    Raises
    ------
    InvalidOptions
        If the name is unknown, or a rate, the batch or the number of workers is not positive.
    """
    network = architecture(name)
    rates = DeviceRates.of(device_tflops, memory_gbytes_per_s)
    for option, value in {"batch": batch, "workers": workers}.items():
        if not 0 < value < float("inf"):
            raise InvalidOptions(f"{option} is {value}: expected a positive number")
    return window(
        network,
        LayerTimes(rates=rates, dtype=dtype),
        name=f"{name.lower()}-b{batch}-w{workers}",
        batch=batch,
        workers=workers,
        allreduce=default_allreduce(workers) if allreduce is None else allreduce,
        streams=streams,
        metadata={
            "origin": "computed",
            "note": "Not measured: layer shapes follow from the architecture, durations from counted work.",
            "method": (
                "duration = max(operations / device_tflops, bytes moved / memory_gbytes_per_s); "
                "matrix products cost 2 operations per multiply-add, backward once per operand's gradient"
            ),
            "architecture": name.lower(),
            "parameters": sum(network.parameters.values()),
            "batch": batch,
            "batch_unit": network.unit,
            "device_tflops": rates.tflops,
            "memory_gbytes_per_s": rates.memory_gbytes_per_s,
            "streams": streams,
        },
    )
