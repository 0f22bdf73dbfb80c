"""Batches small enough to be solved by hand: sizes in Mb, uplinks and the server's downlink in Mb/s."""

from collections.abc import Mapping

import numpy as np

from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.updates import NO_DEADLINE, Updates

Batch = Mapping[str, tuple[float, float, int | None]]

E2: Batch = {"g1": (100, 10, 1), "g2": (100, 100, 5)}
E3: Batch = {"g1": (399, 100, None), "g2": (100, 100, None), "g3": (100, 25, None)}
E4: Batch = {"a": (300, 100, 2), "b": (200, 100, 2), "c": (100, 100, 9)}
E5: Batch = {"a": (300, 100, 1), "b": (200, 100, 1), "c": (100, 100, 9)}
E6: Batch = {"a": (100, 10, 1), "b": (100, 100, 9), "c": (200, 100, 2), "d": (50, 100, 9)}
E7: Batch = {"a": (100, 100, 0), "b": (200, 100, 3)}
E8: Batch = {"a": (100, 20, 1), "b": (100, 10, 2), "c": (100, 100, 9)}


def star(batch: Batch, down: float = 100) -> tuple[Updates, Capacities]:
    """Return one update a host, and a server behind a link of `down`."""
    rows = list(batch.values())
    updates = Updates(
        size=np.array([size for size, _, _ in rows], dtype=float),
        host=np.arange(len(rows)),
        server=len(rows),
        deadline=np.array([NO_DEADLINE if last is None else last for _, _, last in rows]),
    )
    return updates, Capacities.constant([rate for _, rate, _ in rows] + [down], [down] * (len(rows) + 1))
