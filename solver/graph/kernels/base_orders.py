"""Places that keep memory low; see ``pace.solver.graph.base_orders``."""

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.compiled import compiled

STEP = 1e-7


@compiled
def lean_places(
    place: FloatArray,
    order: IntArray,
    later: bool,
    movable: BoolArray,
    starts: IntArray,
    neighbors: IntArray,
    use_starts: IntArray,
    uses: IntArray,
    user_starts: IntArray,
    users: IntArray,
    fresh_starts: IntArray,
    fresh: IntArray,
    storage_bytes: IntArray,
    kept: BoolArray,
) -> None:
    """Change `place`: move ops that add memory to right before their first users, or back those that free it.

    Parameters
    ----------
    order
        The nodes by their places.
    later
        Whether ops that add memory move to later places, or ops that free memory to earlier ones.
    starts, neighbors
        The users of each node if `later`, else what it reads.
    """
    n = len(place)
    for step in range(n):
        node = order[n - 1 - step] if later else order[step]
        if not movable[node] or starts[node] == starts[node + 1]:
            continue
        change = 0
        for at in range(fresh_starts[node], fresh_starts[node + 1]):
            change += storage_bytes[fresh[at]]
        for at in range(use_starts[node], use_starts[node + 1]):
            storage = uses[at]
            if kept[storage]:
                continue
            is_last = True
            for other in range(user_starts[storage], user_starts[storage + 1]):
                if users[other] != node and place[users[other]] >= place[node]:
                    is_last = False
                    break
            if is_last:
                change -= storage_bytes[storage]
        limit = place[neighbors[starts[node]]]
        for at in range(starts[node], starts[node + 1]):
            limit = min(limit, place[neighbors[at]]) if later else max(limit, place[neighbors[at]])
        is_view = fresh_starts[node] == fresh_starts[node + 1] and change == 0
        if later and (change > 0 or is_view):
            place[node] = max(place[node], limit - STEP)
        elif not later and change < 0:
            place[node] = min(place[node], limit + STEP)
