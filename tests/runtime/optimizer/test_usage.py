"""What a loop teaches about itself: how often gradients arrive, and when sending early is in vain."""

import torch
from torch import nn

from pace.runtime.engine.buffers import FusedGroup, Slot
from pace.runtime.engine.plan import PlannedGroup
from pace.runtime.optimizer.usage import Usage


def _slot() -> Slot:
    planned = PlannedGroup(gradients=("weight",), size_bytes=16, dtype="float32", ready_s=0.0, tail_s=0.0)
    group = FusedGroup(0, planned, {"weight": nn.Parameter(torch.zeros(4))}, num_codes=0)
    return group.slots[0]


def _round(usage: Usage, slot: Slot, passes: int) -> None:
    slot.passes = passes
    usage.end_round([slot])


def test_more_passes_are_expected_at_once() -> None:
    """A gradient that arrives three times is waited for three times in the next round."""
    usage, slot = Usage(1), _slot()
    _round(usage, slot, 3)
    assert slot.expected == 3


def test_fewer_passes_are_believed_after_sixteen_rounds() -> None:
    """An odd tail changes nothing; a loop that has changed is followed."""
    usage, slot = Usage(1), _slot()
    _round(usage, slot, 4)
    for _ in range(15):
        _round(usage, slot, 2)
    assert slot.expected == 4
    _round(usage, slot, 1)
    assert slot.expected == 2


def test_a_full_round_forgives_short_ones() -> None:
    """Only rounds in a row count."""
    usage, slot = Usage(1), _slot()
    _round(usage, slot, 2)
    for number in range(60):
        _round(usage, slot, 2 if number % 10 == 0 else 1)
    assert slot.expected == 2


def test_no_less_is_expected_than_the_user_said() -> None:
    """`backward_passes_per_step` is the least."""
    usage, slot = Usage(2), _slot()
    usage.lay_out([slot])
    for _ in range(40):
        _round(usage, slot, 1)
    assert slot.expected == 2


def test_what_was_learned_outlives_a_change_of_plan() -> None:
    """A new layout of the same gradients starts with what is known of them."""
    usage, slot = Usage(1), _slot()
    _round(usage, slot, 3)
    later = _slot()
    usage.lay_out([later])
    assert later.expected == 3


def test_sending_in_vain_is_punished_ever_longer() -> None:
    """One discarded round costs one round without early sending, the next one two, then four."""
    usage = Usage(1)
    usage.learn_passes([])
    held = []
    for _ in range(3):
        usage.wasted()
        usage.end_round([])
        held.append(0)
        while not usage.eager:
            held[-1] += 1
            usage.end_round([])
    assert held == [1, 2, 4]
