"""What a schedule behind a barrier tells DDP and Horovod, and that it is the best there."""

import numpy as np
import pytest
from hypothesis import given

from pace import Options, Profile, optimize
from pace.planning.frameworks.grouping_rules import bucket_cap_mb_list, horovod_groups
from tests.strategies import affine, layered, layered_profiles, properties, set_partitions


def behind_barrier(profile: Profile, groups: list[list[int]]) -> float:
    """Return the window when these groups go out whole in order of ready time, then the forward pass runs."""
    timing = profile.timing
    now = 0.0
    for group in sorted(groups, key=lambda members: (float(timing.ready_s[members].max()), members)):
        size = sum(profile.gradients[number].size_bytes for number in group)
        now = max(now, float(timing.ready_s[group].max())) + float(profile.cost(size))
    return max(timing.compute_s, now + float(timing.tail_s.max(initial=0.0)))


@given(layered_profiles(max_layers=6, min_elements=1).filter(lambda profile: profile.cost.line is not None))
@properties(40)
def test_no_partition_is_faster_behind_a_barrier(profile: Profile) -> None:
    """Affine cost, one dtype: exact against every way to group the gradients."""
    schedule = optimize(profile, Options(framework="ddp"))
    numbers = list(range(len(profile.gradients)))
    best = min(behind_barrier(profile, groups) for groups in set_partitions(numbers))
    assert schedule.predicted.iteration_s == pytest.approx(best, rel=1e-12)
    named = {gradient.name: number for number, gradient in enumerate(profile.gradients)}
    groups = [[named[name] for name in group.tensors] for group in schedule.groups]
    assert behind_barrier(profile, groups) == pytest.approx(best, rel=1e-12)


def test_two_buckets_by_hand() -> None:
    """Ready at 1 and 9 s, 4 bytes each at 1 s/byte, latency 1: apart the last ends at 14, together at 18."""
    profile = layered([4, 4], allreduce=affine(1, 1), backward_s=[1, 8])
    schedule = optimize(profile, Options(framework="ddp"))
    assert [(segment.start_s, segment.end_s) for segment in schedule.transfers] == [(1, 6), (9, 14)]
    assert schedule.predicted.iteration_s == 14 + 2


def test_caps_and_groups_are_those_of_the_schedule() -> None:
    """Sizes in MiB without the empty group, names of all."""
    mib = 1 << 20
    profile = layered([mib, 0, 3 * mib], allreduce=affine(1e-3, 1e-9), backward_s=[1, 1, 1])
    schedule = optimize(profile, Options(framework="ddp", fusion="none"))
    assert sorted(bucket_cap_mb_list(schedule)) == [1.0, 3.0]
    assert sorted(horovod_groups(schedule)) == [["g1"], ["g2"], ["g3"]]
    np.testing.assert_equal(sum(bucket_cap_mb_list(schedule)) * mib, 4 * mib)
