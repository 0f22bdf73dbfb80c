"""The model on the host that serves it, or on its replica: commits in order, snapshots, file and log."""

import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple
from zipfile import BadZipFile

import numpy as np

from pace.errors import InvalidUse
from pace.runtime.event_log import log as log_event
from pace_fabric.runtime.commit_log import (
    CommitLog,
    LoggedCommit,
    LogHead,
    Vector,
    add_scaled,
    apply_step,
    apply_steps,
)
from pace_fabric.runtime.formats.number_formats import Data, decode, encode
from pace_fabric.runtime.messages import CommitOrder
from pace_fabric.runtime.update_records import NumberFormat

# Ids of commits that a restarted scheduler must know, so that nothing is committed twice.
_MOST_RECENT = 20_000
_WHOLE_HEAD = 16
# NumPy has no bfloat16: this is how ml_dtypes' array of them comes back from a file.
_BFLOAT16 = np.dtype("V2")


class ModelState(NamedTuple):
    """A model between two commits.

    Attributes
    ----------
    recent
        The versions of the last commits, by update.
    """

    version: int
    weights: Vector
    history: Vector
    recent: Mapping[str, int]


class SavedModel:
    """Writes a model whole or not at all.

    Parameters
    ----------
    every_s
        Seconds between two saves; 0 saves every commit.
    """

    def __init__(self, file: Path, *, every_s: float) -> None:
        self.file, self._every_s = file, every_s
        self._saved_s = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the last save is long enough ago."""
        return time.monotonic() - self._saved_s >= self._every_s

    def save(self, state: ModelState) -> None:
        """Replace the file."""
        begun = self.file.with_name(f"{self.file.name}.part")
        with begun.open("wb") as out:
            np.savez(
                out,
                version=np.array(state.version),
                weights=state.weights,
                history=state.history,
                updates=np.array(list(state.recent), dtype=np.str_),
                versions=np.array(list(state.recent.values()), dtype=np.int64),
            )
            out.flush()
            os.fsync(out.fileno())
        begun.replace(self.file)
        self._saved_s = time.monotonic()

    def load(self, num_weights: int) -> ModelState | None:
        """Return what was saved last; None if there is no file.

        Raises
        ------
        InvalidUse
            When the file cannot be read, or is of another model.
        """
        if not self.file.exists():
            return None
        try:
            with self.file.open("rb") as opened, np.load(opened, allow_pickle=False) as saved:
                recent = dict(zip(saved["updates"].tolist(), saved["versions"].tolist(), strict=True))
                state = ModelState(int(saved["version"]), saved["weights"], saved["history"], recent)
        except (OSError, BadZipFile, EOFError, KeyError, ValueError) as error:
            raise InvalidUse(f"{self.file}: no state of a server can be read: {error}") from error
        if len(state.weights) != num_weights:
            raise InvalidUse(
                f"{self.file}: a state of {len(state.weights):,} numbers, the model has {num_weights:,}: name"
                " another file, or give the model that was served"
            )
        return state


class HeldModel:
    """Weights, history and version.

    Parameters
    ----------
    weights
        The first model, float32; belongs to this object from now on.
    log
        Where to keep the commit log; None for nowhere.
    saved
        Where to keep the model. What is there already takes the place of `weights`.
    serve_as
        Format of the numbers that workers get. Commits are in float32 whatever it is.

    Raises
    ------
    InvalidUse
        When weights are none, or what was saved does not fit them.
    """

    def __init__(
        self,
        weights: Vector,
        *,
        log: Path | None = None,
        saved: SavedModel | None = None,
        serve_as: NumberFormat = "float32",
    ) -> None:
        if weights.dtype != np.float32 or weights.ndim != 1 or not len(weights):
            raise InvalidUse(f"a model of {weights.shape} {weights.dtype}; one row of float32 is needed")
        self.weights = weights
        self.history = np.zeros_like(weights)
        self.version = 0
        self.momentum = 0.0
        self.recent: OrderedDict[str, int] = OrderedDict()
        self._saved, self._serve_as = saved, serve_as
        self._is_saved = True
        self._head: Literal["begin", "restore"] = "begin"
        if saved is not None and (found := saved.load(len(weights))) is not None:
            self._head = "restore"
            self.version, self.weights, self.history, _ = found
            self.recent.update(found.recent)
            log_event.info("pace.fabric_model_restored", file=str(saved.file), version=self.version)
        self._log = CommitLog(log)
        self._begun = False
        self._network_state = ""

    @property
    def history_norm(self) -> float:
        """Euclidean norm of the last change."""
        return float(np.linalg.norm(self.history.astype(np.float64)))

    @property
    def digest(self) -> str:
        """Hash of weights and history."""
        both = hashlib.sha256(self.weights.tobytes())
        both.update(self.history.tobytes())
        return both.hexdigest()

    def begin(self, momentum: float, network_state: str) -> None:
        """Take the rule of commits from the scheduler; the log begins with it."""
        if self._begun:
            return
        self._begun, self.momentum, self._network_state = True, momentum, network_state
        self._note(self._head)

    def _note(self, event: str) -> None:
        self._log.write(
            LogHead.model_validate(
                {
                    "event": event,
                    "version": self.version,
                    "momentum": self.momentum,
                    "network_state": self._network_state,
                }
            )
        )

    def commit(self, order: CommitOrder, value: Vector) -> tuple[str, ...]:
        """Apply a commit; return the members that it would make too late, and then nothing was done.

        Raises
        ------
        InvalidUse
            When the value does not fit the model.
        """
        if len(value) != (1 + order.exact) * len(self.weights):
            raise InvalidUse(
                f"{order.key} has {len(value):,} numbers, but the model has {len(self.weights):,}"
            )
        # A failover can leave the model older than what an update was computed from: that is no delay.
        delays = [max(self.version + place - m.version, 0) for place, m in enumerate(order.members)]
        if order.delay_bound is not None:
            late = [
                m.id for m, delay in zip(order.members, delays, strict=True) if delay >= order.delay_bound
            ]
            if late:
                return tuple(late)
        step = value if order.scaled else add_scaled([value], [order.members[0].factor])
        if order.exact:
            step, kept = value[: len(self.weights)], value[len(self.weights) :]
            apply_steps(self.weights, self.history, step, kept, self.momentum, len(order.members))
        else:
            apply_step(self.weights, self.history, step, self.momentum)
        before, self.version = self.version, self.version + len(order.members)
        for place, member in enumerate(order.members, start=1):
            self.recent[member.id] = before + place
        while len(self.recent) > _MOST_RECENT:
            self.recent.popitem(last=False)
        self._log.write(
            LoggedCommit(
                position=self._log.position + 1,
                before=before,
                after=self.version,
                members=order.members,
                delays=tuple(delays),
                norm=float(np.linalg.norm(step.astype(np.float64))),
                scaled=order.scaled,
                exact=order.exact,
                planned_s=order.planned_s,
                arrived_s=order.arrived_s,
            )
        )
        self._is_saved = False
        if self._saved is not None and self._saved.is_due:
            self._save()
        return ()

    def _save(self) -> None:
        if self._saved is None or self._is_saved:
            return
        try:
            self._saved.save(ModelState(self.version, self.weights, self.history, self.recent))
            self._is_saved = True
        except OSError as error:  # training goes on, and the next commit tries again
            log_event.error("pace.fabric_model_not_saved", file=str(self._saved.file), reason=str(error))

    def snapshot(self, *, whole: bool) -> tuple[bytearray, NumberFormat]:
        """Return the weights' bytes and format; with `whole` version, weights and history, for a replica."""
        if whole:
            head = self.version.to_bytes(_WHOLE_HEAD, "big")
            return bytearray(head + self.weights.tobytes() + self.history.tobytes()), "float32"
        try:
            return encode(self.weights, self._serve_as), self._serve_as
        except InvalidUse as error:  # right and large rather than wrong
            log_event.warning("pace.fabric_model_not_narrow", version=self.version, reason=str(error))
            return encode(self.weights, "float32"), "float32"

    def adopt(self, snapshot: Data) -> None:
        """Replace everything by a whole snapshot."""
        both = np.frombuffer(snapshot, dtype=np.float32, offset=_WHOLE_HEAD)
        if len(both) != 2 * len(self.weights):
            raise InvalidUse(
                f"the snapshot has {len(both) // 2:,} numbers, but the model has {len(self.weights):,}"
            )
        self.version = int.from_bytes(snapshot[:_WHOLE_HEAD], "big")
        self.weights = both[: len(self.weights)].copy()
        self.history = both[len(self.weights) :].copy()
        self._note("adopt")
        self._is_saved = False

    def promote(self) -> None:
        """Note that this is the server's model from here on."""
        self._note("promote")

    def close(self) -> None:
        """Save what is not saved, and close the log."""
        self._save()
        self._log.close()


def load_model(path: Path) -> Vector:
    """Return the model of a .npy file as one row of float32; numbers of 16 bits keep their values.

    Raises
    ------
    InvalidUse
        When it holds none.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InvalidUse(
            f"{path}: no model can be read: expected a .npy file with float32 numbers"
        ) from error
    if loaded.dtype == _BFLOAT16:
        loaded = decode(loaded.tobytes(), "bfloat16")
    if loaded.dtype not in (np.float32, np.float16) or not loaded.size:
        raise InvalidUse(
            f"{path}: {loaded.shape} {loaded.dtype}; numbers of float32, float16 or bfloat16 are needed"
        )
    return np.ascontiguousarray(loaded, dtype=np.float32).reshape(-1)
