"""Loads every compiled loop that a request may need, so that nobody waits for a compiler."""

import fcntl
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pace.client.documents import SimulationRequest, example_profile
from pace.documents.profile import Profile
from pace.documents.profile_json import compact_profile
from pace.packs import parts

if TYPE_CHECKING:
    from pace.api.questions.kind import QuestionKind

_MOST_ALONE_S = 60.0
_POLICIES = ("fifo", "tao", "p3")


def load_kernels() -> None:
    """Answer something small of every kind.

    Takes a minute where nothing was compiled before, a second where it was, and nothing in a fork.
    """
    if _left:
        with _alone():
            while _left:
                _load_next()


@contextmanager
def _alone() -> Iterator[None]:
    """Wait for other processes that compile, at most a minute: two could take the same name in the cache."""
    folder = os.open(Path(__file__).parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            deadline = time.monotonic() + _MOST_ALONE_S
            while not _locked(folder) and time.monotonic() < deadline:
                time.sleep(0.1)
        yield
    finally:
        os.close(folder)


def _locked(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def load_first_kernels() -> None:
    """Load what most schedules need, whatever it takes, unless it is loaded."""
    if _left[-1:] == [_first_schedule]:
        _load_next()


def load_next_if_compiled() -> bool:
    """Load the next part of what ``load_kernels`` loads; return whether that worked without a compiler."""
    from pace.solver.compiled import without_compiler

    try:
        with without_compiler():
            _load_next()
    except Exception:  # whatever it is: those that need this part meet it again
        return False
    return True


def all_are_loaded() -> bool:
    """Whether this process, or the one that it is a fork of, has loaded all."""
    return not _left


def _load_next() -> None:
    # A part may turn out to be several, the next one last.
    parts = _left[-1]()
    _left[-1:] = parts if isinstance(parts, list) else []


# The serving process, which only names these functions, does without what they import.
def _first_schedule() -> None:
    from pace.planning.allreduce.optimize import warm_up_for_layers

    warm_up_for_layers()


def _schedules() -> None:
    from pace.planning.allreduce.optimize import warm_up

    warm_up()


def _every_schedule() -> list[Callable[[], object]]:
    from pace.planning.warm_up import warm_up_parts

    return warm_up_parts()[::-1]


def _simulations() -> list[Callable[[], object]]:
    return [partial(_simulate, policy) for policy in _POLICIES]


def _simulate(policy: str) -> None:
    from pace.api.workers.drawings import simulation

    profile = Profile.model_validate(example_profile())
    document = zlib.compress(compact_profile(profile).encode())
    simulation(document, SimulationRequest(profile_id=profile.sha256, policies=(policy,)))


def _of_packs() -> list[Callable[[], object]]:
    return [load for kernels in parts("kernels") for load in kernels()]


def _samples() -> list[Callable[[], object]]:
    from pace.api.questions.all_kinds import KINDS

    return [partial(_answer, kind, *sample) for kind in KINDS.values() for sample in kind.samples]


def _answer(kind: "QuestionKind", asked: Mapping[str, Any], options: str) -> None:
    kind.answer(zlib.compress(json.dumps(asked).encode()), options, _ignore)


# What is not loaded yet, the next one last; a fork has what its parent has loaded.
_left: list[Callable[[], object]] = [
    _samples,
    _of_packs,
    _simulations,
    _every_schedule,
    _schedules,
    _first_schedule,
]


def _ignore(count: int) -> None:
    del count
