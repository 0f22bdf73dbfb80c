"""What a host keeps under keys: its workers' updates, parts of sums and snapshots on their way to others."""

from dataclasses import dataclass

import numpy as np

from pace.runtime.fabric.commit_log import Vector, add_scaled, factors_of_steps
from pace.runtime.fabric.messages import AdditionOrder
from pace.runtime.fabric.shards import shard_range, whole_of


@dataclass(slots=True)
class KeptBytes:
    """Bytes under a key; `copies` counts how often they arrived, and `owned` are this host's updates."""

    data: bytearray
    version: int = 0
    owned: bool = False
    copies: int = 1


class ByteStore:
    """Bytes by key, until as many uses as copies have consumed them; only the daemon's thread touches it."""

    def __init__(self) -> None:
        self._kept: dict[str, KeptBytes] = {}

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str) -> KeptBytes | None:
        """Return what is kept as `key`; a shard is cut out of the whole if only that is here."""
        kept, place = self._kept.get(key), whole_of(key)
        if kept is None and place is not None and place[0] in self._kept:
            whole = self._kept[place[0]]
            first, last = shard_range(len(whole.data) // 4, *place[1:])
            kept = KeptBytes(whole.data[4 * first : 4 * last], whole.version)
        return kept

    def vector(self, key: str) -> Vector:
        """Return what is kept as `key`, as numbers."""
        kept = self.get(key)
        assert kept is not None
        return np.frombuffer(kept.data, dtype=np.float32)

    def own(self, key: str, data: bytearray, version: int) -> None:
        """Keep an update of this host until it is removed."""
        self._kept[key] = KeptBytes(data, version, owned=True)

    def put(self, key: str, data: bytearray, version: int = 0) -> None:
        """Keep what has arrived or was made here."""
        if key in self._kept:
            self._kept[key].copies += 1
        else:
            self._kept[key] = KeptBytes(data, version)

    def consume(self, key: str) -> None:
        """Use one copy up; this host's updates stay."""
        kept = self._kept.get(key)
        if kept is not None and not kept.owned:
            kept.copies -= 1
            if kept.copies <= 0:
                del self._kept[key]

    def remove(self, key: str) -> None:
        """Keep nothing as `key` any longer."""
        self._kept.pop(key, None)

    def keep_only_owned(self) -> None:
        """Remove everything but this host's updates."""
        for key in [key for key, kept in self._kept.items() if not kept.owned]:
            del self._kept[key]

    def add(self, order: AdditionOrder) -> None:
        """Replace parts by their sum, if all are here."""
        if any(part not in self for part in order.parts):
            return  # the transfer of the sum will say that there is none
        parts = [self.vector(part) for part in order.parts]
        if len({len(part) for part in parts}) == 1:
            each = [order.factors]
            if order.momentum:
                each = [tuple(factors) for factors in factors_of_steps(order.factors, order.momentum)]
            self.put(order.key, bytearray(b"".join(add_scaled(parts, f).tobytes() for f in each)))
        del parts
        for part in order.parts:
            self.consume(part)
