"""Which of several plans is chosen: one rule for every exchange that fuses (docs/concepts/fusion.md)."""

from collections.abc import Sequence

# Of plans whose windows exceed the shortest by at most this share, the one with the fewest calls wins.
TIE = 2e-3


def fewest_calls(windows_s: Sequence[float], num_calls: Sequence[int]) -> int:
    """Return the number of the plan with the fewest calls among those that are as fast, up to a share `TIE`.

    Of equally many calls, the shorter window wins, then the plan that comes first.
    """
    limit = min(windows_s) * (1 + TIE)
    plans = enumerate(zip(num_calls, windows_s, strict=True))
    return min((calls, window_s, number) for number, (calls, window_s) in plans if window_s <= limit)[-1]
