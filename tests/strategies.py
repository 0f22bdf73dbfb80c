"""Random instances, costs, profiles and options for Hypothesis, and brute force to judge answers by.

Times are mostly small multiples of 1/8 s: doubles add those exactly, so that tests may ask for equality, and
ties, which break careless code, are frequent.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from pace import Gradient, Op, Options, Profile
from pace.documents.collective_costs import (
    AffineAllReduce,
    AllReduce,
    HalvingDoublingAllReduce,
    RingAllReduce,
    SampledAllReduce,
    TreeAllReduce,
    TwoLevelAllReduce,
)
from pace.documents.profile import ELEMENT_BYTES, DType
from pace.solver.arrays import FloatArray
from pace.solver.one_machine import Instance

T = TypeVar("T")

DTYPES: tuple[DType, ...] = ("int8", "float16", "float32")


def properties(max_examples: int) -> settings:
    """Return settings of a property: the same examples in every run, however slow the machine.

    PACE_TEST_EXAMPLES=N multiplies the examples by N and draws new ones in every run.
    """
    factor = int(os.environ.get("PACE_TEST_EXAMPLES", "0"))
    return settings(
        max_examples=max_examples * max(factor, 1),
        derandomize=not factor,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def eighths(most: int) -> st.SearchStrategy[float]:
    """Draw a time of 0 to `most` seconds that doubles add exactly."""
    return st.integers(0, 8 * most).map(lambda number: number / 8)


def exactly(number: int, values: st.SearchStrategy[T]) -> st.SearchStrategy[list[T]]:
    """Draw a list of `number` values."""
    return st.lists(values, min_size=number, max_size=number)


def times() -> st.SearchStrategy[float]:
    """Draw a time, from one that vanishes beside the others to one that dwarfs them."""
    wild = st.floats(0, 1e3, allow_subnormal=False)
    return st.one_of(eighths(4), eighths(4), st.sampled_from([0.0, 1e-9, 0.1, 1.0, 1e3]), wild)


def instance_of(jobs: Sequence[tuple[float, float, float]]) -> Instance:
    """Return the instance of (ready, processing, tail) triples."""
    ready, processing, tail = zip(*jobs, strict=True) if jobs else ((), (), ())
    return Instance(
        ready=np.array(ready, dtype=np.float64),
        processing=np.array(processing, dtype=np.float64),
        tail=np.array(tail, dtype=np.float64),
    )


def instances(
    max_jobs: int, time: st.SearchStrategy[float] | None = None, min_jobs: int = 0
) -> st.SearchStrategy[Instance]:
    """Draw one-machine instances; ties and jobs without processing are frequent."""
    drawn = eighths(4) if time is None else time
    job = st.tuples(drawn, drawn, drawn)
    return st.lists(job, min_size=min_jobs, max_size=max_jobs).map(instance_of)


def slotted_instances(max_jobs: int, most: int = 6) -> st.SearchStrategy[Instance]:
    """Draw instances of whole slots; tails are any multiple of 1/8 slot."""
    whole = st.integers(0, most).map(float)
    return st.lists(st.tuples(whole, whole, eighths(most)), max_size=max_jobs).map(instance_of)


def strongest_set(instance: Instance) -> float:
    """Return the maximum over all non-empty sets of min r + sum p + min q, by looking at every set."""
    jobs = range(len(instance))
    bounds = (
        instance.ready[list(chosen)].min()
        + instance.processing[list(chosen)].sum()
        + instance.tail[list(chosen)].min()
        for size in range(1, len(instance) + 1)
        for chosen in combinations(jobs, size)
    )
    return float(max(bounds, default=0.0))


def set_partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """Yield every way to put `items` into groups."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for partition in set_partitions(rest):
        yield [[first], *partition]
        for at, group in enumerate(partition):
            yield [*partition[:at], [first, *group], *partition[at + 1 :]]


def window(ready: FloatArray, durations: FloatArray, tail: FloatArray) -> float:
    """Return the optimum of the oracle by its dual: the strongest of the sets {r >= rho, q >= theta}."""
    best = 0.0
    for rho in ready:
        for theta in tail:
            inside = (ready >= rho) & (tail >= theta)
            if inside.any():
                best = max(best, float(ready[inside].min() + durations[inside].sum() + tail[inside].min()))
    return best


def samples() -> st.SearchStrategy[SampledAllReduce]:
    """Draw measured samples: repeated, noisy, in any order."""
    pair = st.tuples(st.integers(1, 64).map(float), eighths(2))
    return st.lists(pair, min_size=1, max_size=6).map(lambda pairs: SampledAllReduce(samples=tuple(pairs)))


def allreduces() -> st.SearchStrategy[AllReduce]:
    """Draw an all-reduce document of any kind; bytes cost about as much as a latency."""
    network = st.fixed_dictionaries(
        {
            "bandwidth_bytes_per_s": st.sampled_from([4.0, 16.0, 100.0]),
            "latency_s": st.sampled_from([0.0, 0.125, 0.5]),
            "reduce_bytes_per_s": st.sampled_from([None, 32.0]),
        }
    )
    affine = st.builds(
        AffineAllReduce, latency_s=eighths(1), seconds_per_byte=st.sampled_from([0.0, 0.0625, 0.25, 1.0])
    )
    two_level = st.builds(
        lambda intra, inter: TwoLevelAllReduce(intra=intra, inter=inter, workers_per_node=2), network, network
    )
    formulas = [
        network.map(lambda fields, kind=kind: kind(**fields))  # type: ignore[misc]
        for kind in (RingAllReduce, HalvingDoublingAllReduce, TreeAllReduce)
    ]
    return st.one_of(affine, affine, samples(), *formulas, two_level)


def affine(latency_s: float, seconds_per_byte: float) -> AffineAllReduce:
    """Return an affine cost document."""
    return AffineAllReduce(latency_s=latency_s, seconds_per_byte=seconds_per_byte)


def layered(
    sizes: Sequence[int],
    *,
    allreduce: AllReduce,
    backward_s: Sequence[float] | None = None,
    forward_s: Sequence[float] | None = None,
    dtypes: Sequence[DType] | None = None,
    workers: int = 4,
) -> Profile:
    """Return a chain of layers on one stream; `sizes` are in elements, first the gradient ready first.

    Durations are in order of time: the last of `backward_s` and the first of `forward_s` are layer 1's.
    """
    n = len(sizes)
    names = [f"g{layer}" for layer in range(n, 0, -1)]
    backward = backward_s if backward_s is not None else [1.0] * n
    forward = forward_s if forward_s is not None else [1.0] * n
    kinds: Sequence[DType] = dtypes if dtypes is not None else ["int8"] * n
    ops = [
        Op(name=f"bwd/{name[1:]}", duration_s=duration, stream="compute")
        for name, duration in zip(names, backward, strict=True)
    ]
    ops += [
        Op(name=f"fwd/{name[1:]}", duration_s=duration, stream="compute", waits_for=(name,))
        for name, duration in zip(names[::-1], forward, strict=True)
    ]
    gradients = [
        Gradient(name=name, size_bytes=size * ELEMENT_BYTES[dtype], dtype=dtype, producer=f"bwd/{name[1:]}")
        for name, size, dtype in zip(names, sizes, kinds, strict=True)
    ]
    return Profile(
        name="layered", workers=workers, ops=tuple(ops), gradients=tuple(gradients), allreduce=allreduce
    )


@st.composite
def layered_profiles(
    draw: st.DrawFn,
    *,
    max_layers: int = 6,
    cost: st.SearchStrategy[AllReduce] | None = None,
    min_elements: int = 0,
) -> Profile:
    """Draw a layered model on one stream, of one dtype."""
    n = draw(st.integers(0, max_layers))
    return layered(
        draw(exactly(n, st.integers(min_elements, 24))),
        allreduce=draw(allreduces() if cost is None else cost),
        backward_s=draw(exactly(n, eighths(2))),
        forward_s=draw(exactly(n, eighths(2))),
        workers=draw(st.sampled_from([2, 4, 4])),
    )


@st.composite
def profiles(
    draw: st.DrawFn,
    *,
    max_gradients: int = 6,
    duration: st.SearchStrategy[float] | None = None,
    cost: st.SearchStrategy[AllReduce] | None = None,
) -> Profile:
    """Draw any profile: branches, several streams and dtypes, gradients without bytes or consumer.

    Backward ops come first in the list and depend on nothing after them, which is Assumption A.
    """
    n = draw(st.integers(0, max_gradients))
    streams = st.sampled_from([None, None, "compute", "side"])
    seconds = duration if duration is not None else eighths(2)
    names = [f"g{number}" for number in range(n)]
    backward = [f"bwd/{number}" for number in range(draw(st.integers(1, n + 1)))]
    forward = [f"fwd/{number}" for number in range(draw(st.integers(0, n + 1)))]
    ops = []
    for number, name in enumerate([*backward, *forward]):
        before = [*backward, *forward][:number]
        deps = draw(st.lists(st.sampled_from(before), max_size=2, unique=True)) if before else []
        may_wait = name in forward and names
        waits = draw(st.lists(st.sampled_from(names), max_size=3, unique=True)) if may_wait else []
        ops.append(
            Op(
                name=name,
                duration_s=draw(seconds),
                stream=draw(streams),
                deps=tuple(dep for dep in deps if name in forward or dep in backward),
                waits_for=tuple(waits),
            )
        )
    gradients = []
    for name in names:
        dtype = draw(st.sampled_from(DTYPES))
        elements = draw(st.sampled_from([0, 1, 2, 3, 7, 24]))
        gradients.append(
            Gradient(
                name=name,
                size_bytes=elements * ELEMENT_BYTES[dtype],
                dtype=dtype,
                producer=draw(st.sampled_from(backward)),
            )
        )
    return Profile(
        name="drawn",
        workers=draw(st.sampled_from([1, 2, 4, 6])),
        ops=tuple(ops),
        gradients=tuple(gradients),
        allreduce=draw(allreduces() if cost is None else cost),
    )


def options() -> st.SearchStrategy[Options]:
    """Draw options that fit one another; slots are long enough for the linear program to stay small."""
    fused = st.sampled_from(["optimal", "paper", "none"])
    cap = st.sampled_from([None, None, 1, 16, 64])
    calls = st.just(200)
    continuous = st.builds(
        Options,
        fusion=fused,
        max_group_bytes=cap,
        max_segment_bytes=st.sampled_from([None, None, 1, 8]),
        search_calls=calls,
        risk=st.sampled_from(["mean", "p95"]),
    )
    slotted = st.builds(
        Options,
        fusion=fused,
        max_group_bytes=cap,
        search_calls=calls,
        oracle=st.sampled_from(["jackson", "lp"]),
        slot_s=st.sampled_from([0.1, 0.25, 0.7, 1.0, 100.0]),
    )
    barrier = st.builds(
        Options,
        fusion=st.sampled_from(["optimal", "none"]),
        framework=st.sampled_from(["ddp", "horovod"]),
        max_group_bytes=cap,
    )
    return st.one_of(continuous, slotted, barrier)


def changed(document: dict[str, Any], path: Sequence[str | int], value: Any) -> dict[str, Any]:
    """Return a copy of a JSON document in which the value at `path` is another."""
    copied = dict(document)
    current: Any = copied
    for part in path[:-1]:
        current[part] = dict(current[part]) if isinstance(current[part], dict) else list(current[part])
        current = current[part]
    current[path[-1]] = value
    return copied
