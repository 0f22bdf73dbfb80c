"""The best bucket size for frameworks that fuse by one size: Megatron-Core, DeepSpeed, XLA.

Each framework closes its buckets by its own rule. Here the rule is applied with every size that can make a
difference. The buckets are sent first in, first out to a barrier, and the size with the shortest window is
chosen. One size for all buckets is never better than a size for each (``bucket_cap_mb_list``).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from pace.documents.profile import ELEMENT_BYTES, Profile
from pace.solver.loaded import ROUNDING

# Most sizes to try. From a longer list sizes are taken at even distances, with the smallest and the largest.
MOST_SIZES = 4000

# DeepSpeed's default, which limits the memory of its buffers.
DEEPSPEED_ELEMENTS = 500_000_000

Buckets = list[npt.NDArray[np.intp]]
_Sizes = npt.NDArray[np.int64]
_Rule = Callable[[_Sizes, int], Buckets]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionSize:
    """One size for all buckets.

    Attributes
    ----------
    size
        The size in elements or bytes, as the framework counts.
    iteration_s
        The predicted window with a barrier, in seconds.
    buckets
        The gradients in each bucket, in sending order.
    """

    size: int
    iteration_s: float
    buckets: tuple[tuple[str, ...], ...]


def fusion_settings(profile: Profile) -> list[tuple[str, str, float]]:
    """Return, for each framework, its name and version, the setting, and the predicted window in seconds."""
    megatron = megatron_bucket_size(profile)
    deepspeed = deepspeed_reduce_bucket_size(profile)
    gathered = deepspeed_allgather_bucket_size(profile)
    xla = xla_combine_threshold_bytes(profile)
    return [
        ("Megatron-Core 0.13", f"--ddp-bucket-size {megatron.size}", megatron.iteration_s),
        (
            "DeepSpeed 0.16, ZeRO 1 and 2",
            f'"reduce_bucket_size": {deepspeed.size}, "allgather_bucket_size": {gathered}',
            deepspeed.iteration_s,
        ),
        ("XLA 2025", f"--xla_gpu_all_reduce_combine_threshold_bytes={xla.size}", xla.iteration_s),
    ]


def megatron_bucket_size(profile: Profile) -> FusionSize:
    """Return ``bucket_size`` (``--ddp-bucket-size``) for Megatron's DistributedDataParallel, in elements.

    The rule is that of Megatron-Core 0.13. It takes parameters in the reverse of their order of definition,
    each dtype separately, and closes a bucket once it has at least this number of elements. Here the order is
    that in which gradients become ready. The setting takes effect with ``--overlap-grad-reduce``. Two details
    are not modeled: the padding of buckets by a distributed optimizer, and the separate bucket of embeddings
    that pipeline stages share.
    """
    return _best(profile, _by_ready_time(profile), elements=True, rule=_close_when_full)


def deepspeed_reduce_bucket_size(profile: Profile) -> FusionSize:
    """Return ``reduce_bucket_size`` for DeepSpeed's ZeRO stages 1 and 2, in elements.

    The rule is that of DeepSpeed 0.16: gradients are added in the order in which they become ready, and a
    bucket is sent before a gradient would make it larger than this size.
    """
    return _best(profile, _by_ready_time(profile), elements=True, rule=_close_before_exceeding)


def deepspeed_allgather_bucket_size(profile: Profile) -> int:
    """Return ``allgather_bucket_size`` for DeepSpeed's ZeRO stages 1 and 2 (0.16), in elements.

    Parameters are gathered between the update and the next forward pass, when nothing else runs, so the
    fewest calls are best. The result is the size of all parameters, or DeepSpeed's default if that is less.
    """
    elements = sum(gradient.size_bytes // ELEMENT_BYTES[gradient.dtype] for gradient in profile.gradients)
    return max(min(elements, DEEPSPEED_ELEMENTS), 1)


def xla_combine_threshold_bytes(profile: Profile) -> FusionSize:
    """Return ``--xla_gpu_all_reduce_combine_threshold_bytes`` for XLA, in bytes.

    The rule is that of XLA's AllReduceCombiner as of 2025: all-reduces of one dtype are combined, in the
    order of the program, up to this size. A larger one stays alone and does not end the current combination.
    Here the order is that in which gradients become ready.
    """
    return _best(profile, _by_ready_time(profile), elements=False, rule=_combine)


def _by_ready_time(profile: Profile) -> Sequence[int]:
    ready: Sequence[int] = np.argsort(profile.timing.ready_s, kind="stable").tolist()
    return ready


def _best(profile: Profile, order: Sequence[int], *, elements: bool, rule: _Rule) -> FusionSize:
    by_dtype: dict[str, list[int]] = {}
    for number in order:
        by_dtype.setdefault(profile.gradients[number].dtype, []).append(number)
    runs = [np.array(numbers, dtype=np.intp) for numbers in by_dtype.values()]
    size_bytes = np.array([gradient.size_bytes for gradient in profile.gradients], dtype=np.int64)
    element = np.array([ELEMENT_BYTES[g.dtype] for g in profile.gradients], dtype=np.int64)
    counted = size_bytes // element if elements else size_bytes
    close = partial(_buckets, runs, counted, rule)
    best = min(
        _sizes(counted[run] for run in runs), key=lambda size: (_window(profile, close(size))[0], size)
    )
    window_s, sent = _window(profile, close(best))
    names = [gradient.name for gradient in profile.gradients]
    return FusionSize(
        size=best,
        iteration_s=window_s,
        buckets=tuple(tuple(names[number] for number in members) for members in sent),
    )


def _sizes(runs: Iterable[_Sizes]) -> list[int]:
    """Return the sizes that can make a difference: the sizes of all runs of neighbors."""
    found: set[int] = {1}
    for run in runs:
        ends = np.concatenate([[0], np.cumsum(run)])
        found.update(np.unique(ends[None, :] - ends[:, None]).tolist())
    sizes = sorted(size for size in found if size > 0)
    if len(sizes) <= MOST_SIZES:
        return sizes
    kept = np.unique(np.linspace(0, len(sizes) - 1, MOST_SIZES).round().astype(np.int64))
    return [sizes[at] for at in kept]


def _buckets(runs: list[npt.NDArray[np.intp]], counted: _Sizes, rule: _Rule, size: int) -> Buckets:
    return [run[places] for run in runs for places in rule(counted[run], size)]


def _window(profile: Profile, buckets: Buckets) -> tuple[float, Buckets]:
    """Send buckets first in, first out to a barrier; return the window in seconds and the buckets as sent.

    The window is computed on the compute clock (``pace.solver.compute_clock``) and converted to wall time.
    """
    timing = profile.timing
    ready = np.array([timing.ready_s[members].max() for members in buckets])
    size_bytes = [sum(profile.gradients[number].size_bytes for number in members) for members in buckets]
    order = np.argsort(ready, kind="stable")
    now = carried = 0.0
    extra = profile.clocked_extra
    for at in order:
        if size_bytes[at]:
            now = max(now, float(ready[at]))
            lasting = float(profile.clocked_cost(size_bytes[at]))
            if extra is not None and now < timing.backward_s * (1 - ROUNDING):
                lasting += float(extra(size_bytes[at]))
            now += lasting
            carried += lasting
    window_s = max(float(timing.compute_s), now + float(timing.tail_s.max(initial=0.0)))
    return window_s + (profile.compute_slowdown - 1) * carried, [buckets[at] for at in order]


def _close_when_full(sizes: _Sizes, size: int) -> Buckets:
    ends = np.cumsum(sizes)
    return _stretches(len(sizes), lambda _, before: int(np.searchsorted(ends, before + size)) + 1, ends)


def _close_before_exceeding(sizes: _Sizes, size: int) -> Buckets:
    ends = np.cumsum(sizes)
    return _stretches(
        len(sizes),
        lambda start, before: max(int(np.searchsorted(ends, before + size, side="right")), start + 1),
        ends,
    )


def _combine(sizes: _Sizes, size: int) -> Buckets:
    alone = np.flatnonzero(sizes > size)
    others = np.flatnonzero(sizes <= size)
    combined = [others[places] for places in _close_before_exceeding(sizes[others], size)]
    return [*combined, *(alone[at : at + 1] for at in range(len(alone)))]


def _stretches(length: int, end_of: Callable[[int, int], int], ends: _Sizes) -> Buckets:
    found = []
    start = 0
    while start < length:
        end = min(end_of(start, int(ends[start - 1]) if start else 0), length)
        found.append(np.arange(start, end, dtype=np.intp))
        start = end
    return found
