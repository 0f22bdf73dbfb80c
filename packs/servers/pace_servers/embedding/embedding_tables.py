"""A worker's connections to the servers that hold embedding tables, and the clock of its steps."""

import math
import os
import secrets
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateAnswer
from typing import NamedTuple, NoReturn

import numpy as np
import torch
import torch.distributed as dist

from pace.errors import CommunicationFailed, InvalidOptions, InvalidUse
from pace.runtime.argument_checks import (
    is_number,
    is_timeout,
    refusal,
    require_bool,
    require_instance,
    require_text,
)
from pace.runtime.closing import Closing
from pace.solver.arrays import IntArray
from pace.wire.addresses import parse_address
from pace.wire.handshake import Greeting
from pace_servers.runtime.options import ParameterServers, complete_servers
from pace_servers.runtime.tables.initial_rows import RowArray
from pace_servers.runtime.tables.row_table import TableSpec
from pace_servers.runtime.tables.table_messages import (
    TableLink,
    TableWord,
    pack_look_up,
    pack_push,
    pack_save,
    step_bytes,
)

# Servers number their keys with 32 bits.
_MOST_KEYS_OF_A_SERVER = 1 << 32
_LEAST_SILENCE_S, _LONGEST_SILENCE_S = 1.25, 30.0


class UsedRows:
    """Collects rows when a backward pass reaches them, so that passes without one keep nothing alive.

    Attributes
    ----------
    forwarded
        Whether there was a forward pass with gradients since the last ``forget``.
    """

    def __init__(self) -> None:
        self.forwarded = False
        self._reached: dict[int, tuple[IntArray, torch.Tensor]] = {}

    def expect(self, keys: IntArray, rows: torch.Tensor) -> None:
        """Let a leaf with the rows of some keys require a gradient, and collect it."""
        self.forwarded = True
        rows.requires_grad_()
        if len(keys):
            rows.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda reached: self._note(keys, reached)
            )

    def _note(self, keys: IntArray, rows: torch.Tensor) -> None:
        # Several backward passes through one graph add to the same gradient.
        self._reached[id(rows)] = keys, rows

    def gradients(self) -> list[tuple[IntArray, RowArray]]:
        """Return keys and gradients; a key may be in several entries."""
        return [
            (keys, rows.grad.float().cpu().numpy())
            for keys, rows in self._reached.values()
            if rows.grad is not None
        ]

    def forget(self) -> None:
        """Begin a new step."""
        for _, rows in self._reached.values():
            rows.grad = None
        self._reached = {}
        self.forwarded = False


class Lookup(NamedTuple):
    """Rows that were asked for.

    Attributes
    ----------
    keys
        Sorted and distinct.
    clock
        How many steps the rows contain.
    parts
        For each server that has some of them: which, or None for all, and its answer.
    """

    keys: IntArray
    clock: int
    parts: list[tuple[IntArray | None, "Future[bytearray]"]]


class EmbeddingTables(Closing):
    """Tables of one job, sharded over parameter servers; every rank makes one.

    Call ``step()`` after each optimizer step: it sends the gradients of the rows that this rank has used.

    Parameters
    ----------
    communication
        Servers of their own, started with ``pace servers serve``.
    staleness
        How many steps a rank may be ahead of the slowest: 0 for synchronous training, None for any number.
    average
        Whether gradients are divided by the number of ranks, as other gradients of data parallelism are.
    restore
        Name of the checkpoint to begin with; servers read it when a table is opened.
    timeout_s
        How long to wait for servers and other ranks.
    process_group
        Of ``torch.distributed``, if it is initialized; else this process is the only rank.

    Raises
    ------
    InvalidOptions
        If an argument is not valid.
    CommunicationFailed
        If a server cannot be reached, or refuses.
    """

    def __init__(
        self,
        communication: ParameterServers | None = None,
        *,
        staleness: int | None = 0,
        average: bool = True,
        restore: str | None = None,
        timeout_s: float = 300.0,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self._links: list[TableLink] = []
        self._failure: str | None = None
        self._closed = False
        self._process = os.getpid()
        self._restored_id: str | None = None
        self._used: list[UsedRows] = []
        self._widths: list[int] = []
        # Servers count a table's steps from its opening.
        self._opened: list[int] = []
        self.clock = 0
        given = communication if communication is not None else ParameterServers()
        require_instance("communication", given, ParameterServers, "ParameterServers(servers=[...])")
        if staleness is not None and (type(staleness) is not int or not 0 <= staleness < 1 << 31):
            raise refusal("staleness", staleness, "a whole number of at least 0, or None,")
        require_bool("average", average)
        if restore is not None:
            require_text("restore", restore)
        if not is_timeout(timeout_s):
            raise refusal("timeout_s", timeout_s, "a positive number of seconds")
        self.staleness, self.average, self.restore = staleness, average, restore
        self._timeout_s = timeout_s
        complete = complete_servers(given)
        if isinstance(complete.servers, str) or complete.servers is None:
            raise InvalidOptions(
                'servers is "colocated", and tables are on servers of their own: start `pace servers serve`'
                " and give ParameterServers(servers=[...])"
            )
        job = [secrets.token_hex(16)]
        self.rank, self.size = 0, 1
        if dist.is_initialized():
            self.rank, self.size = dist.get_rank(process_group), dist.get_world_size(process_group)
            dist.broadcast_object_list(job, group=process_group, group_src=0)
        greeting = Greeting(
            job=f"{job[0]}-tables",
            rank=self.rank,
            size=self.size,
            silence_s=min(max(timeout_s / 4, _LEAST_SILENCE_S), _LONGEST_SILENCE_S),
        )
        try:
            for number, place in enumerate(complete.servers):
                self._links.append(
                    TableLink(
                        parse_address(place, f"server {number} ({place})"),
                        greeting,
                        token=complete.token,
                        on_failure=self._fail,
                        within_s=timeout_s,
                        pacing_bytes_per_s=complete.pacing_bytes_per_s,
                        ssl_context=complete.ssl_context,
                    )
                )
        except BaseException as error:
            self._fail(f"rank {self.rank} cannot reach all servers: {error}")
            self.close()
            raise

    @property
    def num_tables(self) -> int:
        """How many tables are open."""
        return len(self._used)

    @property
    def carried_bytes(self) -> tuple[int, int]:
        """How many bytes the kernel has sent to servers and seen acknowledged, and received from them."""
        counts = [link.carried_bytes for link in self._links]
        return sum(sent for sent, _ in counts), sum(received for _, received in counts)

    def _fail(self, reason: str) -> None:
        if self._failure is None:
            self._failure = reason
            for link in list(self._links):
                link.abort(reason)

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled, alone or in a model."""
        raise InvalidUse(
            "embedding tables are connections to servers, which cannot be copied or pickled: keep the"
            " state_dict() of the other layers, and use tables.save(...) for the rows"
        )

    def _require_open(self) -> None:
        if os.getpid() != self._process:
            raise InvalidUse(
                "this process was forked from the one that made these embedding tables, and cannot use them"
            )
        if self._failure is not None:
            raise CommunicationFailed(self._failure)
        if self._closed:
            raise InvalidUse("these embedding tables are closed: make new ones")

    def _answer(self, future: "Future[bytearray]") -> bytearray:
        try:
            return future.result(self._timeout_s)
        except LateAnswer:
            reason = f"servers did not answer within {self._timeout_s:g} s"
            self._fail(f"rank {self.rank}: {reason}")
            raise CommunicationFailed(reason) from None

    def open(self, spec: TableSpec, used: UsedRows) -> int:
        """Have servers make a table, and return its number; all ranks open the same ones in the same order.

        Parameters
        ----------
        used
            Gives the keys and gradients of each step.

        Raises
        ------
        InvalidUse
            When a server refuses; the message says why.
        """
        self._require_open()
        if spec.num_rows > _MOST_KEYS_OF_A_SERVER * len(self._links):
            raise InvalidOptions(
                f"num_embeddings is {spec.num_rows}: {len(self._links)} servers take up to"
                f" {_MOST_KEYS_OF_A_SERVER * len(self._links)}"
            )
        number = len(self._used)
        answers = [
            link.ask(TableWord.OPEN, number, f"{server} {len(self._links)}\n".encode() + spec.document)
            for server, link in enumerate(self._links)
        ]
        for server, answer in enumerate(answers):
            self._check_restored(spec.name, server, self._answer(answer).decode())
        self._used.append(used)
        self._widths.append(spec.width)
        self._opened.append(self.clock)
        return number

    def _check_restored(self, table: str, server: int, restored_id: str) -> None:
        """Refuse files of several checkpoints of one name: a save that did not reach all servers."""
        if self._restored_id is None:
            self._restored_id = restored_id
        if restored_id != self._restored_id:
            raise InvalidUse(
                f'checkpoint "{self.restore}": {self._links[server].address.name} has another of this name'
                f' for table "{table}" than the others, so a save has not reached all: restore an earlier one'
            )

    def _by_server(self, keys: IntArray) -> list[tuple[TableLink, IntArray | None, IntArray]]:
        """Return for each server where in `keys` those are that it has, and its own numbers for them.

        None stands for all places.
        """
        count = len(self._links)
        if count == 1:
            return [(self._links[0], None, keys)]
        server = keys % count
        places = [np.flatnonzero(server == number) for number in range(count)]
        return [(link, mine, keys[mine] // count) for link, mine in zip(self._links, places, strict=True)]

    def ask(self, table: int, keys: IntArray, clock: int) -> Lookup:
        """Ask for rows as they are once updates up to `clock` are in; returns at once.

        Parameters
        ----------
        keys
            Sorted and distinct.
        """
        self._require_open()
        parts = []
        for link, places, numbers in self._by_server(keys):
            if len(numbers):
                message = pack_look_up(clock - self._opened[table], numbers)
                parts.append((places, link.ask(TableWord.LOOK_UP, table, message)))
        return Lookup(keys, clock, parts)

    def step_bytes(self, table: int, keys: IntArray) -> tuple[int, int]:
        """Return what a step with these sorted and distinct keys sends and receives."""
        width = self._widths[table]
        of_servers = [step_bytes(len(numbers), width) for _, _, numbers in self._by_server(keys)]
        return sum(sent for sent, _ in of_servers), sum(received for _, received in of_servers)

    def rows(self, table: int, lookup: Lookup) -> RowArray:
        """Wait for the rows of a lookup, and return them in the order of its keys."""
        width = self._widths[table]
        answers = [
            (places, np.frombuffer(self._answer(answer), dtype="<f4").reshape(-1, width))
            for places, answer in lookup.parts
        ]
        if len(answers) == 1 and len(answers[0][1]) == len(lookup.keys):
            return answers[0][1]
        found = np.empty((len(lookup.keys), width), dtype=np.float32)
        for places, rows in answers:
            found[places] = rows
        return found

    def gradient_norm(self) -> float:
        """Return the 2-norm of the gradients that this rank's next ``step()`` will send."""
        squares = 0.0
        for keys, gradients in self._gradients():
            _, places = np.unique(keys, return_inverse=True)
            sums = np.zeros(gradients.shape)
            np.add.at(sums, places, gradients)
            squares += float(np.square(sums).sum())
        return math.sqrt(squares)

    def step(self, *, grad_scale: float = 1.0) -> bool:
        """Send the gradients of all rows that this rank has used since the last step; returns at once.

        If gradients of a rank are not finite, servers skip the step of all ranks; without synchronous
        training, that rank's step only.

        Parameters
        ----------
        grad_scale
            What gradients are multiplied by, for example ``1 / scaler.get_scale()`` with ``GradScaler``.

        Returns
        -------
        bool
            Whether this rank's gradients are finite.

        Raises
        ------
        CommunicationFailed
            When a server or a rank is gone.
        """
        self._require_open()
        if not is_number(grad_scale) or grad_scale < 0:
            raise refusal("grad_scale", grad_scale, "a number of at least 0")
        updates = self._gradients()
        if grad_scale != 1:
            updates = [(keys, gradients * np.float32(grad_scale)) for keys, gradients in updates]
        finite = all(np.isfinite(gradients).all() for _, gradients in updates)
        for table, (keys, gradients) in enumerate(updates):
            # Servers need every rank's word of every step, also that there is nothing.
            clock = self.clock - self._opened[table]
            for link, places, numbers in self._by_server(keys):
                link.tell(TableWord.PUSH, table, pack_push(clock, numbers, gradients, places, finite=finite))
        for used in self._used:
            used.forget()
        self.clock += 1
        return finite

    def _gradients(self) -> list[tuple[IntArray, RowArray]]:
        """Return keys, with repetitions, and gradients of each table."""
        joined = []
        for used, width in zip(self._used, self._widths, strict=True):
            parts = used.gradients()
            if len(parts) != 1:
                none = np.zeros(0, dtype=np.int64), np.zeros((0, width), dtype=np.float32)
                keys, rows = zip(none, *parts, strict=True)
                parts = [(np.concatenate(keys), np.concatenate(rows))]
            joined += parts
        return joined

    def save(self, name: str) -> None:
        """Have servers write a checkpoint of all tables, with the updates of all steps so far.

        Call it on one rank. In synchronous training, all ranks must have called ``step`` as often, or still
        do so.

        Raises
        ------
        InvalidUse
            When a server cannot; the message says why.
        """
        self._require_open()
        require_text("name", name)
        save_id = secrets.token_hex(16)
        answers = [
            link.ask(TableWord.SAVE, table, pack_save(self.clock - opened, save_id, name))
            for table, opened in enumerate(self._opened)
            for link in self._links
        ]
        for answer in answers:
            self._answer(answer)

    def close(self) -> None:
        """Send what is left, and end the connections; idempotent."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        for link in self._links:
            link.finish()
        for link in self._links:
            link.close()
