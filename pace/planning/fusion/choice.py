"""Which of several plans is chosen: one rule for every exchange that fuses (docs/concepts/fusion.md)."""

from collections.abc import Iterable, Sequence

# Of plans whose windows exceed the shortest by at most this share, the one with the fewest calls wins.
TIE = 2e-3
ROUNDING = 1e-9


def fewest_calls(windows_s: Sequence[float], num_calls: Sequence[int]) -> int:
    """Return the number of the plan with the fewest calls among those that are as fast, up to a share `TIE`.

    Of equally many calls, the shorter window wins, then the plan that comes first.
    """
    limit = min(windows_s) * (1 + TIE)
    plans = enumerate(zip(num_calls, windows_s, strict=True))
    return min((calls, window_s, number) for number, (calls, window_s) in plans if window_s <= limit)[-1]


def curve_of(points: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Return the shortest window for each number of calls, where no plan with fewer calls is as fast.

    Parameters
    ----------
    points
        The number of calls of each plan, and its window.
    """
    found: list[tuple[int, float]] = []
    for num_calls, seconds in sorted(points):
        if not found or seconds < found[-1][1]:
            found.append((num_calls, seconds))
    return tuple(found)


def told_if_longer(window_s: float, least_s: float) -> str:
    """Say by how much a plan's window without load exceeds the least one, if it is more than ``TIE``."""
    longer = window_s / least_s - 1 if least_s else 0.0
    if longer <= TIE * (1 + ROUNDING):
        return ""
    return f"; without load, a plan that is worse under load takes {100 * longer:.2g} % less"
