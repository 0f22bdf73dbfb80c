"""How long compute takes beside collectives."""

from pace.solver.compiled import compiled


@compiled
def beside_traffic_s(seconds: float, busy_s: float, slowdown: float) -> float:
    """Return how long compute takes that takes so many seconds alone; `slowdown` is at least 1.

    For `busy_s` from its start, a wire is busy, and compute takes `slowdown` times as long. So compute that
    starts earlier, or whose traffic ends earlier, never ends later.
    """
    slow_s = min(busy_s, seconds * slowdown)
    return seconds if slow_s <= 0.0 else seconds + slow_s * (1.0 - 1.0 / slowdown)
