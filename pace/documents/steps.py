"""The steps document: what one worker of parameter-server training did in several recorded steps.

The graph of a step is there once, the times of its ops once for each step. Transfers have sizes and no
durations: how long they take depends on who else uses the link.
"""

import hashlib
import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from pace.documents.base import Document, FrozenDict, frozen, load, parse
from pace.documents.op_graph import CyclicGraph, build_graph
from pace.documents.profile import MAX_TOTAL_BYTES, MAX_TOTAL_S, Name, Seconds
from pace.documents.push_pull import MOST_BATCHES, of_batches
from pace.errors import InvalidSteps

StepResource = Literal["downlink", "worker", "uplink", "ps"]
LinkDiscipline = Literal["fifo", "window", "first-service-first", "adaptive", "tic", "reverse", "random"]
Rate = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]

WINDOWED: tuple[LinkDiscipline, ...] = ("window", "first-service-first")


class TouchedBytes(Document):
    """Size of a transfer that carries the rows which any worker has touched.

    Attributes
    ----------
    by_workers
        Mean bytes with one worker, with two, and so on.
    whole_bytes
        Size in bytes with all rows; no number of workers needs more.
    """

    by_workers: tuple[Annotated[float, Field(ge=0, le=MAX_TOTAL_BYTES)], ...] = Field(
        min_length=1, max_length=MOST_BATCHES
    )
    whole_bytes: Annotated[int, Field(ge=0, le=MAX_TOTAL_BYTES)]

    def of(self, workers: int) -> int:
        """Return the bytes with so many workers; beyond those that are known, an upper estimate."""
        found = min(round(of_batches(self.by_workers, workers)), self.whole_bytes)
        if workers <= len(self.by_workers):
            return found
        # As a server answers: rows while they are less than half, else everything.
        return found if 2 * found < self.whole_bytes else self.whole_bytes


class StepsOp(Document):
    """An op of a step.

    Attributes
    ----------
    resource
        "downlink" (a pull from one server), "uplink" (a push to one server), "worker" (compute on the worker)
        or "ps" (compute on a server).
    server
        Number of the server of a transfer or an update; None for 0.
    size_bytes
        Size of a transfer, in bytes.
    stream
        Name of its stream. Compute ops of one stream of a worker run one at a time, in order of arrival.
    deps
        Names of the ops that must end before it starts. A repeated name counts once.
    parameter
        What a transfer or an update belongs to, where its name does not say so after its first slash: what
        has one parameter moves together when parameters are placed on other servers.
    touched
        Of a transfer whose size depends on the number of workers; `size_bytes` is that with one worker.
    """

    name: Name
    resource: StepResource
    server: Annotated[int, Field(ge=0, lt=10_000)] | None = None
    size_bytes: Annotated[int, Field(ge=0, le=MAX_TOTAL_BYTES)] | None = None
    stream: Name | None = None
    deps: tuple[Name, ...] = ()
    parameter: Name | None = None
    # Left out where it says nothing: older documents keep their digests.
    touched: TouchedBytes | None = Field(default=None, exclude_if=lambda touched: touched is None)

    @property
    def belongs_to(self) -> str:
        """The parameter of a transfer or an update."""
        return self.parameter or self.name.partition("/")[2] or self.name

    @property
    def is_transfer(self) -> bool:
        """Whether a link carries it."""
        return self.resource in ("downlink", "uplink")

    @model_validator(mode="after")
    def _fields_of_its_resource(self) -> Self:
        if self.is_transfer:
            if self.size_bytes is None:
                raise ValueError(f"a transfer ({self.resource}) needs size_bytes")
            if self.stream is not None:
                raise ValueError(f"a transfer ({self.resource}) must not have a stream")
        elif self.size_bytes is not None or self.touched is not None:
            raise ValueError(f"compute ({self.resource}) must not have size_bytes")
        if self.resource == "worker" and self.server is not None:
            raise ValueError("compute of the worker must not have a server")
        return self


class StepTimes(Document):
    """Times of every op in one step, in the order of the ops.

    Attributes
    ----------
    duration_s
        Seconds of compute. The values of transfers are not used, because they contain waits for the link.
    start_s
        Start of each op. It gives the order in which ops without dependencies are submitted.
    """

    duration_s: tuple[Seconds, ...]
    start_s: tuple[Seconds, ...] | None = None


ShareSpread = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
ShareSpreadBytes = Annotated[int, Field(gt=0, le=MAX_TOTAL_BYTES)]


def refuse_size_without_spread(share_spread: float | None, share_spread_bytes: int | None) -> None:
    """Raise ValueError where a spread's size is given, but no spread that was measured with it."""
    if share_spread_bytes is not None and share_spread is None:
        raise ValueError("share_spread_bytes says what share_spread was measured with: give both")


class StepLink(Document):
    """The links between workers and servers.

    Attributes
    ----------
    bytes_per_s
        Measured rate of one host's link, the same each way.
    window_bytes
        Largest number of bytes that a stream sends before others have their turn; None: each transfer is sent
        in one piece.
    discipline
        Order in which a connection sends waiting transfers; see packs/servers/docs/throughput.md.
    share_spread
        How unequally transfers share a link: standard deviation of the logarithm of their weights, drawn for
        each transfer. None: a simulation uses equal shares, and a prediction those of a good network.
    share_spread_bytes
        Size of the transfers with which `share_spread` was measured. Transfers that are n times as large have
        1/sqrt(n) of the spread. None: transfers of all sizes have the same spread.
    """

    bytes_per_s: Rate
    window_bytes: Annotated[int, Field(gt=0, le=MAX_TOTAL_BYTES)] | None = None
    discipline: LinkDiscipline = "fifo"
    share_spread: ShareSpread | None = None
    share_spread_bytes: ShareSpreadBytes | None = None

    @model_validator(mode="after")
    def _window_where_one_is_needed(self) -> Self:
        if self.discipline in WINDOWED and self.window_bytes is None:
            raise ValueError(f'discipline "{self.discipline}" needs window_bytes')
        return self

    @model_validator(mode="after")
    def _size_of_a_spread_that_is_given(self) -> Self:
        refuse_size_without_spread(self.share_spread, self.share_spread_bytes)
        return self


class ParsingOverhead(Document):
    """Compute time of a receiver for each transfer: seconds_per_byte * bytes + seconds."""

    seconds_per_byte: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    seconds: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = 0.0


class StepsDocument(Document):
    """Recorded steps of one worker, and the links that it used.

    Attributes
    ----------
    batch
        Number of examples in a step of one worker.
    servers
        Number of servers that hold the parameters.

    Raises
    ------
    pydantic.ValidationError
        From the constructor. ``parse_steps`` and ``load_steps`` raise ``InvalidSteps`` instead.
    """

    refused_as = InvalidSteps

    schema_version: Literal[1] = 1
    kind: Literal["parameter-server-steps"] = "parameter-server-steps"
    name: Name
    batch: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] = 1.0
    servers: Annotated[int, Field(ge=1, le=10_000)] = 1
    ops: tuple[StepsOp, ...]
    steps: tuple[StepTimes, ...]
    link: StepLink
    overhead: ParsingOverhead = ParsingOverhead()
    metadata: Annotated[dict[str, Any], AfterValidator(frozen)] = Field(default_factory=FrozenDict)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for what, items in (("ops", self.ops), ("steps", self.steps)):
            if not items:
                raise ValueError(f"{what}: there are none")
        names: set[str] = set()
        for op in self.ops:
            if op.name in names:
                raise ValueError(f'two ops are named "{op.name}"')
            names.add(op.name)
        for op in self.ops:
            for name in op.deps:
                if name not in names:
                    raise ValueError(f'op "{op.name}" depends on "{name}", which is no op')
            if op.server is not None and op.server >= self.servers:
                raise ValueError(f'op "{op.name}" is on server {op.server}: expected below {self.servers}')
        for number, step in enumerate(self.steps):
            for field, times in (("duration_s", step.duration_s), ("start_s", step.start_s)):
                if times is not None and len(times) != len(self.ops):
                    raise ValueError(
                        f"step {number}: {field} has {len(times)} numbers for {len(self.ops)} ops"
                    )
            if sum(step.duration_s) > MAX_TOTAL_S:
                raise ValueError(f"step {number}: ops last more than {MAX_TOTAL_S:g} s together")
        try:
            self._order  # noqa: B018  # a cycle is found by sorting
        except CyclicGraph as error:
            cycle = " -> ".join(f'"{self.ops[op].name}"' for op in (*error.cycle, error.cycle[0]))
            raise ValueError(f"ops wait for one another in a cycle: {cycle}") from None
        if sum(op.size_bytes or 0 for op in self.ops) > MAX_TOTAL_BYTES:
            raise ValueError(f"transfers have more than {MAX_TOTAL_BYTES} bytes together")
        self._refuse_empty_steps()
        return self

    def _refuse_empty_steps(self) -> None:
        if any(op.size_bytes for op in self.ops):
            return
        for number, step in enumerate(self.steps):
            if not any(step.duration_s):
                raise ValueError(f"step {number} takes no time: no op has bytes or a duration")

    @cached_property
    def dependencies(self) -> tuple[tuple[int, ...], ...]:
        """For every op, the numbers of the distinct ops that end before it starts."""
        index = {op.name: number for number, op in enumerate(self.ops)}
        return tuple(tuple(dict.fromkeys(index[name] for name in op.deps)) for op in self.ops)

    @cached_property
    def _order(self) -> tuple[int, ...]:
        return build_graph([0.0] * len(self.ops), self.dependencies, [None] * len(self.ops)).order

    @property
    def topological_order(self) -> tuple[int, ...]:
        """The numbers of the ops, each after those that it waits for."""
        return self._order

    def replace(self, **changes: Any) -> "StepsDocument":
        """Return a copy with some fields changed, validated anew."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return StepsDocument(**(fields | changes))

    @property
    def most_workers(self) -> int | None:
        """Up to how many workers sizes are known; None if they depend on no number of workers."""
        known = [len(op.touched.by_workers) for op in self.ops if op.touched is not None]
        return min(known, default=None)

    def at_workers(self, workers: int) -> "StepsDocument":
        """Return the document with the sizes of transfers with so many workers."""
        if self.most_workers is None:
            return self
        return self.replace(
            ops=tuple(
                op if op.touched is None else op.model_copy(update={"size_bytes": op.touched.of(workers)})
                for op in self.ops
            )
        )

    def bytes_of(self, resource: StepResource) -> tuple[int, ...]:
        """Return the bytes that one step moves through each server's link in one direction."""
        total = [0] * self.servers
        for op in self.ops:
            if op.resource == resource:
                total[op.server or 0] += op.size_bytes or 0
        return tuple(total)

    def to_json(self) -> bytes:
        """Serialize for people: an op or a step a line; the same document, the same bytes."""
        document = self.model_dump(mode="json", exclude_defaults=True)
        head = {"schema_version": 1, "kind": self.kind, "name": self.name, "batch": self.batch}
        head["servers"] = self.servers
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        lines += [f'"ops": {_rows(document["ops"])}', f'"steps": {_rows(document["steps"])}']
        lines += [
            f'"{name}": {json.dumps(getattr(self, name).model_dump(mode="json"))}'
            for name in ("link", "overhead")
        ]
        lines.append(f'"metadata": {json.dumps(self.metadata, indent=1, allow_nan=False)}')
        return ("{" + ",\n ".join(lines) + "}\n").encode()

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the document's canonical JSON; 64 hexadecimal digits."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def _rows(values: Iterable[Any]) -> str:
    return "[\n  " + ",\n  ".join(json.dumps(value, allow_nan=False) for value in values) + "]"


def parse_steps(document: bytes | str) -> StepsDocument:
    """Read a steps document from JSON.

    Raises
    ------
    InvalidSteps
        With one line per fault, each naming the op or the step at fault.
    """
    return parse(StepsDocument, document)


def load_steps(path: str | Path) -> StepsDocument:
    """Read a steps document from a JSON file; raises InvalidSteps and OSError."""
    return load(parse_steps, path, InvalidSteps)
