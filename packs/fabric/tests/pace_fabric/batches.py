"""Networks and batches for tests."""

from typing import Any

from pace_fabric.documents.batch import UpdateBatch
from pace_fabric.documents.network import FabricNetwork

MEGABIT = 125_000


def network_of(
    up: dict[str, float], *, down: float = 100, replica_down: float | None = None, **more: Any
) -> FabricNetwork:
    """Return workers with uplinks in Mb/s, a server "s" and perhaps a replica "r"."""
    rates = {name: (rate, down) for name, rate in up.items()} | {"s": (down, down)}
    if replica_down is not None:
        rates["r"] = (down, replica_down)
    hosts = [
        {"name": name, "up_bytes_per_s": u * MEGABIT, "down_bytes_per_s": d * MEGABIT}
        for name, (u, d) in rates.items()
    ]
    document = {"hosts": hosts, "server": "s", "replica": "r" if replica_down is not None else None, **more}
    return FabricNetwork.model_validate(document)


def batch_of(
    updates: dict[str, tuple[float, str, int]], *, bound: int | None = 30, **more: Any
) -> UpdateBatch:
    """Return updates of (megabits, host, version) on version 100."""
    listed = [
        {"id": name, "host": host, "size_bytes": int(size * MEGABIT), "version": version, "norm": 1.0}
        for name, (size, host, version) in updates.items()
    ]
    document = {"version": 100, "delay_bound": bound, "updates": listed, **more}
    return UpdateBatch.model_validate(document)


WORKERS: dict[str, float] = {f"h{i}": rate for i, rate in enumerate((100, 50, 100, 25, 100, 100))}


def whole() -> tuple[FabricNetwork, UpdateBatch]:
    """Return a batch with drops, a sum, and a replica behind half a link."""
    network = network_of(WORKERS, replica_down=50, aggregators=["h0", "h4"])
    updates = {f"u{i}": (100.0, host, version) for i, (host, version) in enumerate(
        zip(WORKERS, (100, 99, 98, 92, 100, 85), strict=True)
    )}  # fmt: skip
    batch = batch_of(updates, bound=10, momentum=0.5, divergence={"kind": "norm", "max": 6.0})
    return network, batch
