"""Arrays that a host keeps by key: its workers' updates, parts of sums, and snapshots that it forwards."""

from collections.abc import Sequence
from dataclasses import dataclass

from pace_fabric.runtime.commit_log import Vector, add_scaled, factors_of_steps
from pace_fabric.runtime.formats.number_formats import Data, encode
from pace_fabric.runtime.formats.update_forms import cut_update, dense_vector, numbers_of
from pace_fabric.runtime.messages import AdditionOrder
from pace_fabric.runtime.shards import shard_range, whole_of
from pace_fabric.runtime.sparse_update import SparseUpdate, add_sparse, join_sparse
from pace_fabric.runtime.update_records import UpdateForm

# What every host can send, so that receivers see how much a link carries.
PROBE = "probe"
PROBE_BYTES = 128 << 10


@dataclass(slots=True)
class KeptBytes:
    """Bytes under a key; `copies` counts how often they arrived, and `owned` are this host's updates."""

    data: Data
    version: int = 0
    owned: bool = False
    copies: int = 1
    form: UpdateForm = "float32"


class ByteStore:
    """Bytes by key, until as many uses as copies have consumed them; only the daemon's thread touches it."""

    def __init__(self) -> None:
        self._kept: dict[str, KeptBytes] = {}

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str) -> KeptBytes | None:
        """Return what is kept as `key`; a shard is cut out of the whole if only that is here."""
        if key == PROBE:
            return KeptBytes(bytearray(PROBE_BYTES))
        kept, place = self._kept.get(key), whole_of(key)
        if kept is None and place is not None and place[0] in self._kept:
            whole = self._kept[place[0]]
            part = shard_range(numbers_of(whole.data, whole.form), *place[1:])
            kept = KeptBytes(cut_update(whole.data, whole.form, *part), whole.version, form=whole.form)
        return kept

    def vector(self, key: str) -> Vector:
        """Return what is kept as `key`, as numbers."""
        kept = self.get(key)
        assert kept is not None
        return dense_vector(kept.data, kept.form)

    def own(self, key: str, data: Data, version: int, form: UpdateForm = "float32") -> None:
        """Keep an update of this host until it is removed."""
        self._kept[key] = KeptBytes(data, version, owned=True, form=form)

    def put(self, key: str, data: Data, version: int = 0, form: UpdateForm = "float32") -> None:
        """Keep what has arrived or was made here."""
        if key in self._kept:
            self._kept[key].copies += 1
        else:
            self._kept[key] = KeptBytes(data, version, form=form)

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
        each = [order.factors]
        if order.momentum:
            each = [tuple(factors) for factors in factors_of_steps(order.factors, order.momentum)]
        if not self._add_sparse(order, each):
            parts = [self.vector(part) for part in order.parts]
            if len({len(part) for part in parts}) == 1:
                rows = [encode(add_scaled(parts, factors), order.form) for factors in each]
                self.put(order.key, rows[0] if len(rows) == 1 else rows[0] + rows[1], form=order.form)
            del parts
        for part in order.parts:
            self.consume(part)

    def _add_sparse(self, order: AdditionOrder, each: Sequence[tuple[float, ...]]) -> bool:
        """Keep a sparse sum, if all parts are sparse and their sum is smaller than the whole vector."""
        kept = [self.get(part) for part in order.parts]
        if not all(part is not None and part.form == "sparse" for part in kept):
            return False
        parts = [SparseUpdate.from_bytes(part.data) for part in kept if part is not None]
        sums = [add_sparse(parts, factors) for factors in each]
        data = (sums[0] if len(sums) == 1 else join_sparse(*sums)).to_bytes()
        if len(data) >= 4 * parts[0].numbers * len(each):
            return False
        self.put(order.key, data, form="sparse")
        return True
