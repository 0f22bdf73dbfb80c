"""A server's share of a table: rows that were updated, with their optimizer's state; others are computed.

Which keys get a row, and which rows are given up, is decided by counts and by age.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pace.errors import InvalidOptions
from pace.runtime.argument_checks import require_whole
from pace.solver.arrays import BoolArray, IntArray
from pace_servers.runtime.tables.initial_rows import FirstRows, Initialization, RowArray, initial_rows
from pace_servers.runtime.tables.row_optimizers import RowOptimizer, read_row_optimizer

# Rows are given up in bulk: to rank all of them for each new one would take too long.
_GIVEN_UP_SHARE = 16

# First values that are kept from a lookup until the update that follows.
_MOST_FIRST_BYTES = 16 << 20

# The optimizer takes rows in blocks of so many numbers, whose temporary arrays stay in the processor's cache.
_BLOCK = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRows:
    """Which rows servers store. The others keep their initial values, and their gradients are dropped.

    Attributes
    ----------
    min_count
        A key gets a row with its update of this number; 1 for the first.
    most_rows
        Most rows that one server stores of a table. If there are more, those with the fewest updates are
        given up, the oldest first; None for no limit.
    most_age_steps
        A row without an update for more steps is given up; None for never.
    """

    min_count: int = 1
    most_rows: int | None = None
    most_age_steps: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers below 1."""
        require_whole("min_count", self.min_count, least=1)
        for name in ("most_rows", "most_age_steps"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name), least=1)


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """A table as workers and servers agree on it.

    Attributes
    ----------
    num_rows, width
        Keys of the whole table, and numbers of a row.
    staleness
        How many steps a worker may be ahead of the slowest; None for any number.
    average
        Whether updates are divided by the number of workers.
    restore
        Name of the checkpoint that servers begin with.
    """

    name: str
    num_rows: int
    width: int
    optimizer: RowOptimizer
    initialization: Initialization
    scale: float
    seed: int
    kept: KeptRows
    staleness: int | None
    average: bool
    restore: str | None

    @cached_property
    def document(self) -> bytes:
        """The bytes that are sent and compared."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        own = {"optimizer": self.optimizer.document, "kept": asdict(self.kept)}
        return json.dumps(fields | own, sort_keys=True).encode()

    @classmethod
    def read(cls, document: bytes | bytearray) -> "TableSpec":
        """Read a ``document``.

        Raises
        ------
        InvalidOptions
            When it describes no table.
        """
        try:
            fields: dict[str, Any] = json.loads(document)
            fields["optimizer"] = read_row_optimizer(fields["optimizer"])
            fields["kept"] = KeptRows(**fields["kept"])
            return cls(**fields)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidOptions(f"a table that cannot be read: {error}") from None


class RowTable:
    """Rows of the keys of one server; keys here are numbered from 0, and stand for every `num_servers`th.

    Parameters
    ----------
    server, num_servers
        Key k of the table is key k // num_servers of server k % num_servers.
    most_bytes
        Memory that rows and their state may take.

    Raises
    ------
    InvalidOptions
        When the table may need more.
    """

    def __init__(self, spec: TableSpec, server: int, num_servers: int, *, most_bytes: int) -> None:
        self.spec, self._server, self._num_servers = spec, server, num_servers
        self.num_keys = len(range(server, spec.num_rows, num_servers))
        self.capacity = min(self.num_keys, spec.kept.most_rows or self.num_keys, np.iinfo(np.int32).max)
        state_width = spec.optimizer.state_width(spec.width)
        drawn_bytes = 0 if spec.initialization == "zeros" else 4 * self.num_keys * spec.width
        first_bytes = min(drawn_bytes, _MOST_FIRST_BYTES)
        needed = 4 * self.capacity * (spec.width + state_width + 3) + 12 * self.num_keys + first_bytes
        if needed > most_bytes:
            raise InvalidOptions(
                f'table "{spec.name}" may take {needed:,} bytes on this server, and {most_bytes:,} are left'
                " for it: use more servers, KeptRows(most_rows=...), or a larger --most-gib"
            )
        self.size_bytes = needed
        # The kernel gives memory to rows when they are first written.
        self._rows = np.zeros((self.capacity, spec.width), dtype=np.float32)
        self._state = np.zeros((self.capacity, state_width), dtype=np.float32)
        self._key_of = np.zeros(self.capacity, dtype=np.int64)
        self._slot_of = np.full(self.num_keys, -1, dtype=np.int32)
        self._counts = np.zeros(self.num_keys, dtype=np.uint32)
        self._touched = np.zeros(self.num_keys, dtype=np.int32)
        self._free = np.zeros(0, dtype=np.int64)
        self._used = 0
        self._first = FirstRows(self._initial, most_bytes=first_bytes)
        self.restored_id = ""
        self.num_updates = 0

    @property
    def place(self) -> str:
        """Which of how many servers this is, counted from 1."""
        return f"{self._server + 1}-of-{self._num_servers}"

    @property
    def num_stored(self) -> int:
        """How many rows are stored."""
        return self._used - len(self._free)

    def look_up(self, keys: IntArray, rank: int = 0) -> RowArray:
        """Return rows of shape (num_keys, width) for keys of this server."""
        slots = self._slot_of[keys]
        found = np.empty((len(keys), self.spec.width), dtype=np.float32)
        # A slot of -1 takes the first row for the moment.
        np.take(self._rows, slots, axis=0, out=found, mode="clip")
        missing = np.flatnonzero(slots < 0)
        if len(missing):
            found[missing] = self._first.looked_up(keys[missing], rank)
        return found

    def _initial(self, keys: IntArray) -> RowArray:
        spec = self.spec
        return initial_rows(
            keys * self._num_servers + self._server,
            spec.width,
            kind=spec.initialization,
            scale=spec.scale,
            seed=spec.seed,
        )

    def update(self, keys: IntArray, gradients: RowArray, ranks: Iterable[int] = (0,)) -> None:
        """Apply a step of the optimizer to the rows of distinct keys.

        Parameters
        ----------
        ranks
            Whose gradients these are.
        """
        self.num_updates += 1
        kept = self.spec.kept
        counts = self._counts[keys] + np.uint32(1)
        self._counts[keys] = counts
        self._touched[keys] = self.num_updates
        if kept.min_count > 1:
            admitted = (self._slot_of[keys] >= 0) | (counts >= kept.min_count)
            keys, gradients = keys[admitted], gradients[admitted]
        if kept.most_age_steps is not None and self.num_updates % max(kept.most_age_steps // 4, 1) == 0:
            stored = self._stored_slots()
            old = self._touched[self._key_of[stored]] < self.num_updates - kept.most_age_steps
            self._give_up(stored[old])
        keys, gradients = self._make_room(keys, gradients, ranks)
        slots = self._slot_of[keys].astype(np.int64)
        num_rows = max(_BLOCK // self.spec.width, 1)
        for begin in range(0, len(slots), num_rows):
            block = slice(begin, begin + num_rows)
            self._update_block(slots[block], gradients[block])

    def _update_block(self, slots: IntArray, gradients: RowArray) -> None:
        rows, state = self.spec.optimizer.updated(
            self._rows.take(slots, axis=0), self._state.take(slots, axis=0), gradients, self.num_updates
        )
        self._rows[slots] = rows
        if state.shape[1]:
            self._state[slots] = state

    def _make_room(
        self, keys: IntArray, gradients: RowArray, ranks: Iterable[int]
    ) -> tuple[IntArray, RowArray]:
        """Give every key a row, or as many as there may be; return those that have one."""
        new = np.flatnonzero(self._slot_of[keys] < 0)
        if not len(new):
            return keys, gradients
        room = self.capacity - self.num_stored
        if len(new) > room:
            stored = self._stored_slots()
            others = stored[~np.isin(self._key_of[stored], keys)]
            count = min(max(len(new) - room, self.capacity // _GIVEN_UP_SHARE), len(others))
            self._give_up(others[self._by_worth(self._key_of[others])[:count]])
            room = self.capacity - self.num_stored
            if len(new) > room:
                worst = new[self._by_worth(keys[new])[: len(new) - room]]
                left = np.ones(len(keys), dtype=np.bool_)
                left[worst] = False
                keys, gradients = keys[left], gradients[left]
                new = np.flatnonzero(self._slot_of[keys] < 0)
        added = keys[new]
        reused = self._free[: len(added)]
        self._free = self._free[len(reused) :]
        fresh = np.arange(self._used, self._used + len(added) - len(reused))
        self._used += len(fresh)
        slots: IntArray = np.concatenate([reused, fresh])
        self._slot_of[added] = slots
        self._key_of[slots] = added
        self._rows[slots] = self._first.updated(added, ranks)
        self._state[slots] = 0.0
        return keys, gradients

    def _by_worth(self, keys: IntArray) -> IntArray:
        return np.lexsort((keys, self._touched[keys], self._counts[keys]))

    def _stored_slots(self) -> IntArray:
        stored: BoolArray = np.ones(self._used, dtype=np.bool_)
        stored[self._free] = False
        return np.flatnonzero(stored)

    def _give_up(self, slots: IntArray) -> None:
        keys = self._key_of[slots]
        self._slot_of[keys] = -1
        self._counts[keys] = 0
        self._free = np.concatenate([self._free, slots])

    def contents(self, save_id: str) -> dict[str, Any]:
        """Return all that a checkpoint with this id holds, as arrays."""
        slots = self._stored_slots()
        seen = np.flatnonzero(self._counts)
        return {
            "save_id": np.frombuffer(save_id.encode(), dtype=np.uint8),
            "spec": np.frombuffer(self.spec.document, dtype=np.uint8),
            "place": np.array([self._server, self._num_servers, self.num_updates]),
            "keys": self._key_of[slots],
            "rows": self._rows[slots],
            "state": self._state[slots],
            "seen": seen,
            "counts": self._counts[seen],
            "touched": self._touched[seen],
        }

    def restore(self, contents: Any) -> None:
        """Take over what ``contents`` returned.

        Raises
        ------
        InvalidOptions
            When it is of another table, or of another number of servers.
        """
        server, num_servers, updates = contents["place"].tolist()
        theirs = TableSpec.read(contents["spec"].tobytes())
        mine = self.spec
        for what, found, wanted in (
            ("servers", num_servers, self._num_servers),
            ("server", server, self._server),
            ("rows", theirs.num_rows, mine.num_rows),
            ("numbers in a row", theirs.width, mine.width),
            ("optimizer", type(theirs.optimizer).__name__, type(mine.optimizer).__name__),
            (
                "initial values",
                (theirs.initialization, theirs.scale, theirs.seed),
                (mine.initialization, mine.scale, mine.seed),
            ),
        ):
            if found != wanted:
                raise InvalidOptions(
                    f'table "{mine.name}": the checkpoint has {what}: {found}, and the job has {wanted}'
                )
        keys = contents["keys"]
        if len(keys) > self.capacity:
            raise InvalidOptions(
                f'table "{mine.name}": the checkpoint has {len(keys)} rows, and most_rows is {self.capacity}'
            )
        self.restored_id = contents["save_id"].tobytes().decode()
        self._used, self.num_updates = len(keys), updates
        self._slot_of[keys] = np.arange(len(keys))
        self._key_of[: len(keys)] = keys
        self._rows[: len(keys)] = contents["rows"]
        self._state[: len(keys)] = contents["state"]
        self._counts[contents["seen"]] = contents["counts"]
        self._touched[contents["seen"]] = contents["touched"]
