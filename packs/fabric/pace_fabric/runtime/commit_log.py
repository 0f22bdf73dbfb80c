"""The commit log: one line of JSON for every commit of a model, by the process that holds the model.

With the first model and the updates, it is enough to compute the model again, bit by bit: sums are added in
the order of the log, in float32.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from pace.documents.base import Document, explain
from pace_fabric.errors import InvalidFabric
from pace_fabric.runtime.update_records import Amount, CommitMember, Count, Momentum

Vector = NDArray[np.float32]


class LogHead(Document):
    """The first line of a log, and of each of its continuations after a failover or a restart.

    Attributes
    ----------
    event
        "begin": a model is held from here on. "restore": it is the one that was saved at `version`; later
        commits above are lost. "adopt": it was replaced by a snapshot of the server's. "promote": the replica
        is the server from here on.
    network_state
        Whether plans were made from measured rates, or from an oracle's with a lag.
    """

    schema_version: Literal[1] = 1
    event: Literal["begin", "restore", "adopt", "promote"]
    version: Count
    momentum: Momentum = 0.0
    network_state: str = ""


class LoggedCommit(Document):
    """One line of the log: a commit.

    Attributes
    ----------
    position
        Counted from 1 in this log.
    before, after
        Version of the model; it rises by the number of members.
    delays
        Delay of each member: the version just before its commit, minus the one that it was computed from.
    norm
        Norm of what was added, before momentum.
    scaled
        Whether members were summed with their factors on the way; else the one member was scaled here.
    exact
        Whether every member was a step of its own with momentum, though they came as sums.
    planned_s, arrived_s
        When it was to arrive, and when it did, on the scheduler's clock.
    """

    event: Literal["commit"] = "commit"
    position: Count
    before: Count
    after: Count
    members: Annotated[tuple[CommitMember, ...], Field(min_length=1)]
    delays: tuple[int, ...]
    norm: Amount
    scaled: bool
    exact: bool = False
    planned_s: Amount
    arrived_s: Amount


class CommitLog:
    """Appends to a log; every line is with the operating system before the next commit.

    Parameters
    ----------
    path
        File of the log; None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.position = 0
        self._file: int | None = None
        if path is not None:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, line: LogHead | LoggedCommit) -> None:
        """Append one line."""
        if isinstance(line, LoggedCommit):
            self.position = line.position
        if self._file is not None:
            os.write(self._file, line.model_dump_json().encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_log(path: Path) -> Iterator[LogHead | LoggedCommit]:
    """Yield the lines of a log; a last line that was cut short is left out.

    Raises
    ------
    InvalidFabric
        When a line is no line of a log; the message names it.
    """
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            kind = LoggedCommit if json.loads(line).get("event") == "commit" else LogHead
            yield kind.model_validate_json(line)
        except (ValueError, AttributeError) as error:
            said = explain(error) if isinstance(error, ValidationError) else str(error)
            raise InvalidFabric(f"{path}, line {number}: {said}") from None


def violations(lines: Sequence[LogHead | LoggedCommit], delay_bound: int | None) -> list[str]:
    """Return every commit that breaks the delay bound, or does not follow the one before it."""
    found: list[str] = []
    version: int | None = None
    for line in lines:
        if isinstance(line, LogHead):
            version = line.version
            continue
        if version is not None and line.before != version:
            found.append(f"commit {line.position} follows version {line.before}, not {version}")
        if line.after != line.before + len(line.members):
            found.append(f"commit {line.position} ends at version {line.after}")
        version = line.after
        for place, (member, delay) in enumerate(zip(line.members, line.delays, strict=True)):
            derived = max(line.before + place - member.version, 0)
            if delay != derived:
                found.append(f"commit {line.position}: delay of {member.id} is {delay}, derived {derived}")
            if delay_bound is not None and delay >= delay_bound:
                found.append(
                    f"commit {line.position}: delay of {member.id} is {delay}, the bound is {delay_bound}"
                )
    return found


def add_scaled(parts: Sequence[Vector], factors: Sequence[float]) -> Vector:
    """Return the sum of factors times parts, from the first to the last, in float32."""
    total = parts[0] * np.float32(factors[0])
    for part, factor in zip(parts[1:], factors[1:], strict=True):
        total += part if factor == 1.0 else part * np.float32(factor)
    return total


def replay(
    model: Vector, lines: Sequence[LogHead | LoggedCommit], update: Callable[[str], Vector]
) -> tuple[Vector, Vector]:
    """Compute a model again from its first state and its log; return it and its history.

    Parameters
    ----------
    update
        Returns an update as it was pushed, by its id.
    """
    weights, history = model.astype(np.float32), np.zeros(len(model), dtype=np.float32)
    momentum = next(line.momentum for line in lines if isinstance(line, LogHead))
    for line in _lasting(lines):
        parts = [update(member.id) for member in line.members]
        factors = [member.factor for member in line.members]
        if line.exact:
            moved, kept = (add_scaled(parts, each) for each in factors_of_steps(factors, momentum))
            apply_steps(weights, history, moved, kept, momentum, len(parts))
        else:
            apply_step(weights, history, add_scaled(parts, factors), momentum)
    return weights, history


def _lasting(lines: Sequence[LogHead | LoggedCommit]) -> list[LoggedCommit]:
    """Return the commits that no restart has lost; a server without a state begins with the first model."""
    lasting: list[LoggedCommit] = []
    for line in lines:
        if isinstance(line, LoggedCommit):
            lasting.append(line)
        elif line.event in ("begin", "restore"):
            lasting = [commit for commit in lasting if commit.after <= line.version]
    return lasting


def apply_step(weights: Vector, history: Vector, step: Vector, momentum: float) -> None:
    """Commit a step in place: ``h = step + gamma h`` and ``w = w + h``."""
    if momentum:
        history *= np.float32(momentum)
        history += step
    else:
        history[:] = step
    weights += history


def factors_of_steps(factors: Sequence[float], momentum: float) -> tuple[list[float], list[float]]:
    """Return what multiplies members that are one step each: in the model's move, and in the history.

    After m steps from the history h the model has moved by ``(g + ... + g^m) h`` and the sum over i of
    ``(1 + ... + g^(m-i)) u_i``, and the history is ``g^m h`` and the sum over i of ``g^(m-i) u_i``.
    """
    last = len(factors) - 1
    kept = [factor * momentum ** (last - place) for place, factor in enumerate(factors)]
    moved = [
        factor * sum(momentum**power for power in range(last - place + 1))
        for place, factor in enumerate(factors)
    ]
    return moved, kept


def apply_steps(
    weights: Vector, history: Vector, moved: Vector, kept: Vector, momentum: float, num_steps: int
) -> None:
    """Commit steps that come as two sums, in place."""
    weights += np.float32(sum(momentum**power for power in range(1, num_steps + 1))) * history
    weights += moved
    history *= np.float32(momentum**num_steps)
    history += kept
