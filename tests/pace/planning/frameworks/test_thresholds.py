"""One size for all buckets: the rules of three frameworks by hand, and that no size is better."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given

from pace import Options, Profile, optimize
from pace.documents.profile import ELEMENT_BYTES, DType
from pace.planning.frameworks.thresholds import (
    FusionSize,
    deepspeed_allgather_bucket_size,
    deepspeed_reduce_bucket_size,
    megatron_bucket_size,
    xla_combine_threshold_bytes,
)
from pace.planning.fusion.choice import TIE
from tests.strategies import affine, layered, layered_profiles, properties


def window(profile: Profile, buckets: Sequence[Sequence[str]]) -> float:
    """Return the window when buckets go out whole in order of ready time, then the forward pass runs."""
    timing = profile.timing
    numbers = {gradient.name: number for number, gradient in enumerate(profile.gradients)}
    members = [[numbers[name] for name in bucket] for bucket in buckets]
    now = 0.0
    for bucket in sorted(members, key=lambda each: max(timing.ready_s[number] for number in each)):
        size = sum(profile.gradients[number].size_bytes for number in bucket)
        if size:
            now = max(now, *(float(timing.ready_s[number]) for number in bucket)) + float(profile.cost(size))
    return max(float(timing.compute_s), now + float(timing.tail_s.max(initial=0.0)))


def in_words(profile: Profile, rule: str, size: int) -> list[list[str]]:
    """Close buckets one gradient at a time, as the frameworks' loops do; one dtype."""
    buckets: list[list[str]] = []
    current: list[str] = []
    held = 0
    ready = profile.timing.ready_s
    for number in sorted(range(len(profile.gradients)), key=lambda each: float(ready[each])):
        gradient = profile.gradients[number]
        counted = (
            gradient.size_bytes if rule == "xla" else gradient.size_bytes // ELEMENT_BYTES[gradient.dtype]
        )
        if rule == "xla" and counted > size:
            buckets.append([gradient.name])
            continue
        if rule != "megatron" and current and held + counted > size:
            buckets.append(current)
            current, held = [], 0
        current.append(gradient.name)
        held += counted
        if rule == "megatron" and held >= size:
            buckets.append(current)
            current, held = [], 0
    return [*buckets, current] if current else buckets


EXPORTERS: dict[str, Callable[[Profile], FusionSize]] = {
    "megatron": megatron_bucket_size,
    "deepspeed": deepspeed_reduce_bucket_size,
    "xla": xla_combine_threshold_bytes,
}


@pytest.mark.parametrize("rule", EXPORTERS)
@given(profile=layered_profiles(max_layers=5, min_elements=1).filter(lambda p: p.cost.line is not None))
@properties(25)
def test_no_size_is_better(rule: str, profile: Profile) -> None:
    """Against every size up to all gradients together; and buckets and window are those of the size."""
    total = sum(gradient.size_bytes for gradient in profile.gradients)
    made = EXPORTERS[rule](profile)
    sizes = {1, *range(1, min(total, 60) + 1)}
    ready = sorted(profile.gradients, key=lambda g: float(profile.timing.ready_s[profile.gradients.index(g)]))
    sizes |= {
        sum(g.size_bytes for g in ready[a:b]) + more
        for a in range(len(profile.gradients))
        for b in range(a + 1, len(profile.gradients) + 1)
        for more in (-1, 0, 1)
    }
    best = min(window(profile, in_words(profile, rule, size)) for size in sizes if size > 0)
    assert made.iteration_s == pytest.approx(best, rel=1e-12)
    assert window(profile, in_words(profile, rule, made.size)) == pytest.approx(best, rel=1e-12)
    assert window(profile, made.buckets) == pytest.approx(best, rel=1e-12)
    each = optimize(profile, Options(framework="ddp")).predicted.iteration_s
    assert made.iteration_s >= each / (1 + TIE) * (1 - 1e-9)


def test_rules_by_hand() -> None:
    """Elements 2, 1, 3 in order of readiness (8, 4, 12 bytes), ready at 10, 11 and 30 s.

    A call takes 5 s + 1 s/byte. All three at once end at 30 + 29 = 59. Apart: 23, 32, 49. The first two
    together end at 11 + 17 = 28, the third at 47: the best, since the third cannot begin before 30. No size
    makes Megatron do so but 3: at 2 the first is alone. DeepSpeed does so at 3, 4 and 5, XLA at 12.
    """
    kinds: list[DType] = ["float32"] * 3
    profile = layered([2, 1, 3], allreduce=affine(5, 1), backward_s=[10, 1, 19], dtypes=kinds)
    timing = profile.timing
    assert timing.ready_s.tolist() == [10, 11, 30]
    tail = float(timing.tail_s.max())
    for made, size in (
        (megatron_bucket_size(profile), 3),
        (deepspeed_reduce_bucket_size(profile), 3),
        (xla_combine_threshold_bytes(profile), 12),
    ):
        assert made.size == size
        assert [set(bucket) for bucket in made.buckets] == [{"g3", "g2"}, {"g1"}]
        assert made.iteration_s == 47 + tail
    assert deepspeed_allgather_bucket_size(profile) == 6


def test_rules_differ() -> None:
    """4, 16 and 4 bytes: XLA leaves what is too large alone and combines the others around it."""
    profile = layered([4, 16, 4], allreduce=affine(10, 1), backward_s=[0, 0, 1])
    assert in_words(profile, "xla", 8) == [["g2"], ["g3", "g1"]]
    assert in_words(profile, "megatron", 8) == [["g3", "g2"], ["g1"]]
    assert in_words(profile, "deepspeed", 8) == [["g3"], ["g2"], ["g1"]]
