"""From layers to a profile: durations at stated rates, ops of one window, gradients, metadata.

The network can be rescaled to a wanted ratio of communication to compute.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pace.collectives import Link
from pace.device_rates import DeviceRates
from pace.documents.collective_costs import (
    AffineAllReduce,
    AllReduce,
    RingAllReduce,
    SampledAllReduce,
    TwoLevelAllReduce,
)
from pace.documents.profile import ELEMENT_BYTES, DType, Gradient, Op, Profile
from pace.documents.push_pull import PushPull
from pace.errors import InvalidProfile
from pace.models.layers import Architecture, Work

Streams = Literal[0, 1, 2]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """How long layers take on a device, for activations, parameters and gradients of one dtype."""

    rates: DeviceRates
    dtype: DType

    def duration_s(self, work: Work, batch: int) -> float:
        """Time of one direction of a layer."""
        elements = work.moved * batch + work.moved_once
        seconds = self.rates.duration_s(work.flops * batch, elements * ELEMENT_BYTES[self.dtype])
        return float(f"{seconds:.6g}")  # the counts are no more exact than that


def window(
    network: Architecture,
    times: LayerTimes,
    *,
    name: str,
    batch: int,
    workers: int,
    allreduce: AllReduce,
    streams: Streams,
    metadata: dict[str, object],
) -> Profile:
    """Return the profile of one window: backward in reverse layer order, then the next forward.

    A parameter that several layers use gets one gradient, ready when the last of their backward ops
    has added its part; each of the layers waits for it.
    """
    ops = _backward(network, times, batch) + _forward(network, times, batch)
    return Profile(
        name=name,
        workers=workers,
        ops=_on_streams(ops, streams),
        gradients=_gradients(network, times.dtype),
        allreduce=allreduce,
        metadata=metadata,
    )


def default_allreduce(workers: int) -> RingAllReduce:
    """Ring at 10 Gb/s whose messages' latencies add up to 0.3 ms an all-reduce."""
    messages = 2 * (workers - 1)
    return RingAllReduce(bandwidth_bytes_per_s=1.25e9, latency_s=0.3e-3 / messages if messages else 0.0)


def _backward(network: Architecture, times: LayerTimes, batch: int) -> list[Op]:
    # For every layer: the backward ops that end before its result's gradient is complete, and the
    # elements read to add the gradient's parts, one for each use of the result.
    before: dict[str, dict[str, None]] = {layer.name: {} for layer in network.layers}
    to_add = _elements_to_add(network)
    last_user: dict[str, str] = {}  # parameter: the backward op that added to its gradient last
    ancestors = _Ancestors()
    ops = []
    for layer in reversed(network.layers):
        sources = before[layer.name]
        name = f"bwd/{layer.name}"
        if layer.backward is None:
            # Its gradient passes to the inputs as it is; the first of them pays for the sum.
            to_add[layer.producers[0]] += to_add[layer.name]
        else:
            deps = {**sources, **{last_user[p]: None for p in layer.parameters if p in last_user}}
            last_user.update(dict.fromkeys(layer.parameters, name))
            work = replace(layer.backward, moved=layer.backward.moved + to_add[layer.name])
            reduced = ancestors.add(name, tuple(deps))
            ops.append(Op(name=name, duration_s=times.duration_s(work, batch), deps=reduced))
            sources = {name: None}
        for producer in layer.producers:
            before[producer].update(sources)
    return ops


def _elements_to_add(network: Architecture) -> dict[str, float]:
    used = dict.fromkeys((layer.name for layer in network.layers), 0.0)
    for layer in network.layers:
        for value in layer.inputs:
            assert value.layer is not None
            used[value.layer] += value.volume
    return {layer.name: max(used[layer.name] - layer.output, 0.0) for layer in network.layers}


class _Ancestors:
    """Drops the dependencies that others imply, as residual sums would else collect them all."""

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}  # op: a set of op numbers, as an integer's bits
        self._numbers: dict[str, int] = {}

    def add(self, op: str, deps: tuple[str, ...]) -> tuple[str, ...]:
        implied = 0
        for dep in deps:
            implied |= self._bits[dep]
        needed = tuple(dep for dep in deps if not implied >> self._numbers[dep] & 1)
        self._numbers[op] = len(self._numbers)
        self._bits[op] = implied
        for dep in needed:
            self._bits[op] |= 1 << self._numbers[dep]
        return needed


def _forward(network: Architecture, times: LayerTimes, batch: int) -> list[Op]:
    ops = []
    for layer in network.layers:
        # Without a stream nothing else keeps the next iteration behind this one's backward pass.
        own = () if layer.inputs or layer.backward is None else (f"bwd/{layer.name}",)
        deps = dict.fromkeys((*(f"fwd/{producer}" for producer in layer.producers), *own))
        ops.append(
            Op(
                name=f"fwd/{layer.name}",
                duration_s=times.duration_s(layer.forward, batch),
                deps=tuple(deps),
                waits_for=layer.parameters,
            )
        )
    return ops


def _gradients(network: Architecture, dtype: DType) -> tuple[Gradient, ...]:
    first_user: dict[str, str] = {}
    for layer in network.layers:
        for parameter in layer.parameters:
            first_user.setdefault(parameter, layer.name)
    return tuple(
        Gradient(
            name=parameter,
            size_bytes=network.parameters[parameter] * ELEMENT_BYTES[dtype],
            dtype=dtype,
            producer=f"bwd/{user}",
        )
        for parameter, user in reversed(first_user.items())
    )


def _on_streams(ops: Sequence[Op], streams: Streams) -> tuple[Op, ...]:
    """Put every op on the stream where it starts first, in list order; the first of equals."""
    if not streams:
        return tuple(ops)
    names = ("compute", "compute2")[:streams]
    free = dict.fromkeys(names, 0.0)
    end: dict[str, float] = {}
    placed = []
    for op in ops:
        ready = max((end[name] for name in op.deps), default=0.0)
        stream = min(names, key=lambda name: max(free[name], ready))
        free[stream] = end[op.name] = max(free[stream], ready) + op.duration_s
        placed.append(op.model_copy(update={"stream": stream}))
    return tuple(placed)


def communication_ratio(profile: Profile) -> float:
    """Time of one all-reduce of all gradients together over the time of all compute (C0)."""
    if not profile.timing.compute_s:
        raise InvalidProfile(f'profile "{profile.name}" has no compute to compare with')
    return _together_s(profile) / profile.timing.compute_s


def with_ratio(profile: Profile, ratio: float) -> Profile:
    """Return the profile with a network that makes ``communication_ratio`` equal to `ratio`.

    Latency stays; everything that is paid per byte is scaled: bandwidth, the speed of the
    reduction, and of samples what lies above the smallest. The metadata keeps the ratio.

    Raises
    ------
    InvalidProfile
        If latency alone exceeds the wanted ratio, or no byte costs anything.
    """
    together = _together_s(profile)
    latency = _latency_s(profile)
    wanted = ratio * profile.timing.compute_s
    if together <= latency or wanted <= latency:
        raise InvalidProfile(
            f'profile "{profile.name}" cannot reach a communication/compute ratio of {ratio:g}: '
            f"one all-reduce of everything takes {together:g} s, {latency:g} s of it latency, "
            f"beside {profile.timing.compute_s:g} s of compute"
        )
    factor = (wanted - latency) / (together - latency)
    return profile.replace(
        allreduce=_scaled(profile.allreduce, factor),
        metadata={**profile.metadata, "communication_ratio": ratio},
    )


def _together_s(profile: Profile) -> float:
    return float(profile.cost(sum(gradient.size_bytes for gradient in profile.gradients)))


def _latency_s(profile: Profile) -> float:
    if isinstance(profile.allreduce, SampledAllReduce):
        return min(seconds for _, seconds in profile.allreduce.samples)
    return profile.cost.durations_s[0]


def _scaled(allreduce: AllReduce, factor: float) -> AllReduce:
    if isinstance(allreduce, AffineAllReduce):
        return allreduce.model_copy(update={"seconds_per_byte": allreduce.seconds_per_byte * factor})
    if isinstance(allreduce, SampledAllReduce):
        floor = min(seconds for _, seconds in allreduce.samples)
        samples = tuple((size, floor + (seconds - floor) * factor) for size, seconds in allreduce.samples)
        return allreduce.model_copy(update={"samples": samples})
    if isinstance(allreduce, TwoLevelAllReduce):
        intra = allreduce.intra.model_copy(update=_slower(allreduce.intra, factor))
        inter = allreduce.inter.model_copy(update=_slower(allreduce.inter, factor))
        return allreduce.model_copy(update={"intra": intra, "inter": inter})
    if isinstance(allreduce, PushPull):
        rate, at_servers = allreduce.worker_bytes_per_s, allreduce.server_bytes_per_s
        scaled = None if at_servers is None else at_servers / factor
        return allreduce.model_copy(
            update={"worker_bytes_per_s": rate / factor, "server_bytes_per_s": scaled}
        )
    return allreduce.model_copy(update=_slower(allreduce, factor))


def _slower(network: Link, factor: float) -> dict[str, float | None]:
    reduce = network.reduce_bytes_per_s
    return {
        "bandwidth_bytes_per_s": network.bandwidth_bytes_per_s / factor,
        "reduce_bytes_per_s": None if reduce is None else reduce / factor,
    }
