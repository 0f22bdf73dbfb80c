"""What a loop teaches about itself: how often gradients arrive, and when sending early is in vain."""

from pace.runtime.optimizer.usage import Usage


def _round(usage: Usage, passes: int) -> None:
    usage.end_round({"weight": passes})


def test_more_passes_are_expected_at_once() -> None:
    """A gradient that arrives three times is waited for three times in the next round."""
    usage = Usage(1)
    _round(usage, 3)
    assert usage.expected["weight"] == 3


def test_fewer_passes_are_believed_after_sixteen_rounds() -> None:
    """An odd tail changes nothing; a loop that has changed is followed."""
    usage = Usage(1)
    _round(usage, 4)
    for _ in range(15):
        _round(usage, 2)
    assert usage.expected["weight"] == 4
    _round(usage, 1)
    assert usage.expected["weight"] == 2


def test_a_full_round_forgives_short_ones() -> None:
    """Only rounds in a row count."""
    usage = Usage(1)
    _round(usage, 2)
    for number in range(60):
        _round(usage, 2 if number % 10 == 0 else 1)
    assert usage.expected["weight"] == 2


def test_no_less_is_expected_than_the_user_said() -> None:
    """`backward_passes_per_step` is the least."""
    usage = Usage(2)
    for _ in range(40):
        _round(usage, 1)
    assert usage.expected["weight"] == 2


def test_sending_in_vain_is_punished_ever_longer() -> None:
    """One discarded round costs one round without early sending, the next one two, then four."""
    usage = Usage(1)
    usage.learn_passes({})
    held = []
    for _ in range(3):
        usage.wasted()
        usage.end_round({})
        held.append(0)
        while not usage.eager:
            held[-1] += 1
            usage.end_round({})
    assert held == [1, 2, 4]


def test_the_number_of_passes_can_be_changed() -> None:
    """What earlier rounds taught is forgotten."""
    usage = Usage(1)
    _round(usage, 3)
    usage.expect(2)
    assert usage.expected["weight"] == 2
    _round(usage, 1)
    assert usage.expected["weight"] == 2
