"""Hypothesis strategies for training programs: what people write, in every combination.

A program is a list of iterations, and an iteration has the parts that loops have: something before, old
gradients dropped, backward passes, something done to gradients, a step. Any part may be missing or come
twice, and iterations repeat, as loops do.
"""

import os
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.runtime.loops.loop_models import KINDS, LOOP_OPTIMIZERS
from tests.runtime.loops.loop_program import Operation, Program, defined
from tests.runtime.loops.loop_readings import READS_OF_GRADIENTS

Operations = st.SearchStrategy[list[Operation]]


def num_loops(usual: int) -> int:
    """How many loops to try: PACE_RANDOM_LOOPS, where it is set."""
    return int(os.environ.get("PACE_RANDOM_LOOPS", str(usual)))


def settings_of_loops(usual: int) -> settings:
    """Return the settings of a test that trains in random loops; it tries so many of them."""
    return settings(
        max_examples=num_loops(usual),
        derandomize="PACE_RANDOM_LOOPS" not in os.environ,  # the suite tries the same; a search, new ones
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def _one(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


_UNIT = st.integers(0, 5)
_NUMBER = st.integers(0, 11)
_NAME_OF_READ = st.sampled_from(READS_OF_GRADIENTS)
_WAY = _one("parameters", "groups", "state", "attribute", "raw", "kept", "kept")


@st.composite
def _paths(draw: st.DrawFn, size: int) -> tuple[tuple[int, ...], ...]:
    """The same path on every rank, different ones, or none at all on some."""
    kind = draw(_one("same", "same", "own", "own", "some"))
    least = 0 if kind == "some" else 1
    paths = [tuple(draw(st.lists(_UNIT, min_size=least, max_size=4))) for _ in range(size)]
    return tuple(paths[0] if kind == "same" else path for path in paths)


def _compute(size: int) -> st.SearchStrategy[Operation]:
    styles = _one("once", "once", "once", "once", "retain", "two", "sum", "part", "same", "penalty", "late")
    return st.tuples(st.just("compute"), styles, _paths(size))


_READ = st.one_of(
    st.tuples(st.just("read"), st.none(), _NAME_OF_READ), st.tuples(st.just("read"), _NUMBER, _NAME_OF_READ)
)

_ZERO = st.one_of(
    st.tuples(st.just("zero"), _one("optimizer", "optimizer", "model", "hand"), st.booleans()),
    st.tuples(st.just("zero"), _UNIT, st.booleans()),
)

_CHANGE = st.one_of(
    st.tuples(st.just("norm"), _one(0.05, 0.5, 1e9)),
    st.tuples(st.just("norm"), _one(0.05, 0.5)),
    st.tuples(st.just("value"), _one(0.01, 0.1)),
    st.tuples(st.just("scale"), _one(0.5, 2.0)),
    st.tuples(st.just("noise"), st.integers(0, 9)),
    st.tuples(st.just("decay"), _one(0.01, 0.1)),
    st.tuples(st.just("data"), _one(0.01, 0.1)),
    st.tuples(st.just("replace"), _NUMBER),
    st.tuples(st.just("drop"), _NUMBER),
    st.just(("keep",)),
    st.just(("keep",)),
    st.tuples(st.just("kept_scale"), _one(0.0, 0.5)),
    st.just(("kept_read",)),
)

_ASIDE = st.one_of(
    _READ,
    st.just(("compare",)),
    st.tuples(st.just("freeze"), _UNIT),
    st.tuples(st.just("unfreeze"), _UNIT),
    st.tuples(st.just("rate"), _one(0.5, 1.5)),
    st.tuples(st.just("weights"), _WAY),
    st.tuples(st.just("clamp"), _one(0.1, 0.3), _one("parameters", "groups", "data", "kept")),
    st.just(("state",)),
    st.just(("save",)),
    st.just(("restore",)),
    st.just(("synchronize",)),
    st.just(("report",)),
    st.tuples(st.just("forward"), st.lists(_UNIT, min_size=1, max_size=3).map(tuple)),
)


# Through references that the loop keeps, right after a step or anywhere.
_THROUGH_ALIASES = st.one_of(
    st.tuples(st.just("weights"), st.just("kept")),
    st.tuples(st.just("clamp"), _one(0.1, 0.3), st.just("kept")),
    st.tuples(st.just("alias"), _one("data", "state", "numpy")),
    st.just(("aliased",)),
    st.tuples(st.just("alias_clamp"), _one(0.1, 0.3)),
    st.tuples(st.just("fork"), st.lists(_UNIT, min_size=1, max_size=3).map(tuple)),
    st.tuples(st.just("func"), st.lists(_UNIT, min_size=1, max_size=3).map(tuple)),
    st.tuples(st.just("kept_rate"), _one(0.5, 1.5)),
    st.just(("state_hold",)),
    st.just(("state_read",)),
    st.tuples(st.just("state_scale"), _one(0.5)),
    st.tuples(st.just("state_edit"), _one(0.5)),
    st.tuples(st.just("patch"), _one(0.5, 0.9)),
    st.just(("unpatch",)),
    st.tuples(st.just("kept_scale"), _one(0.0, 0.5)),
    st.just(("kept_read",)),
)


def _some(strategy: st.SearchStrategy[Operation], most: int) -> Operations:
    """None at all half of the time."""
    return st.one_of(st.just([]), st.lists(strategy, min_size=1, max_size=most))


@st.composite
def _iteration(draw: st.DrawFn, size: int) -> list[Operation]:
    compute = _compute(size)
    before = draw(_some(st.one_of(_ASIDE, _THROUGH_ALIASES), 2))
    zero = draw(
        st.one_of(_ZERO.map(lambda each: [each]), st.just([("zero", "optimizer", True)]), st.just([]))
    )
    kind = draw(
        _one("plain", "plain", "plain", "plain", "accumulate", "closure", "scaled", "assigned", "flat")
    )
    if kind == "scaled":
        return [*before, *draw(_scaled(size))]
    if kind == "flat":
        return [*before, *draw(_flat(size))]
    if kind == "closure":
        inside = [*zero, draw(compute), *draw(_some(_CHANGE, 1))]
        return [*before, ("closure", tuple(inside))]
    passes = [draw(compute)]
    if kind == "accumulate":
        quiet = draw(st.lists(st.one_of(compute, compute, _READ), min_size=1, max_size=2))
        quiet = [*quiet, *draw(_some(st.just(("scale", 0.5)), 1))]
        passes = draw(
            st.sampled_from(
                [
                    [*passes, draw(compute)],
                    [("no_sync", tuple(quiet)), *passes],
                    [("no_sync", tuple(quiet))],
                    [*passes, ("no_sync", tuple(quiet)), draw(compute)],
                ]
            )
        )
    if kind == "assigned":
        passes = [*passes[: draw(st.integers(0, 1))], ("assign", draw(_NUMBER)), *draw(_some(compute, 1))]
    after = draw(_some(st.one_of(_CHANGE, _CHANGE, _READ), 3))
    extra = draw(
        _one([], [], [], [], [("log", draw(_NUMBER))], [("log", draw(_NUMBER)), ("loss",)], [("loss",)])
    )
    ending = draw(_one([("step",)], [("step",)], [("step",)], [("step",), draw(_READ)], []))
    if ("step",) in ending:
        ending = [*ending, *draw(_some(_THROUGH_ALIASES, 3))]
    late = zero if draw(_one(False, False, True)) else []
    early = [] if late else zero
    return [*before, *early, *passes, *after, *extra, *ending, *late]


@st.composite
def _flat(draw: st.DrawFn, size: int) -> list[Operation]:
    """Steps whose gradients lie in a flat buffer, which is cleared and scaled as a whole."""
    operations: list[Operation] = [("zero", "optimizer", True), ("flat",)]
    for _ in range(draw(st.integers(1, 3))):
        operations += [draw(_one(("flat_scale", 0.0), ("flat_scale", 0.5)))]
        operations += [draw(_compute(size)), *draw(_some(st.just(("flat_scale", 0.5)), 1))]
        operations += [*draw(_some(st.one_of(_CHANGE, _READ), 1)), ("step",)]
        operations += draw(_some(_THROUGH_ALIASES, 1))
    return operations


@st.composite
def _scaled(draw: st.DrawFn, size: int) -> list[Operation]:
    """A cycle of a loss scaler; after an overflow gradients are dropped."""
    overflow = draw(_one(None, None, *range(size)))
    zero = ("zero", "optimizer", draw(st.booleans()))
    operations: list[Operation] = [zero]
    operations += [("scaled", draw(_paths(size)), None)] * draw(_one(0, 0, 1))
    operations.append(("scaled", draw(_paths(size)), overflow))
    if draw(st.booleans()):
        operations += [("unscale",), *draw(_some(_CHANGE.filter(lambda each: each[0] != "drop"), 1))]
    operations.append(("scaler_step",))
    return [*operations, zero] if overflow is not None else operations


@st.composite
def programs(draw: st.DrawFn, size: int) -> Program:
    """Draw a training program for `size` ranks."""
    kinds = ("linear", *draw(st.lists(st.sampled_from(KINDS), min_size=2, max_size=5)))
    iterations: list[Operation] = []
    for times in draw(st.lists(_one(1, 1, 2, 3, 5), min_size=1, max_size=5)):
        iterations += draw(_iteration(size)) * times
    options: dict[str, Any] = {"mode": draw(_one("overlap", "overlap", "barrier", "auto"))}
    options |= draw(_one({}, {}, {"order": "adaptive"}, {"order": "priority"}, {"credit_bytes": 0}))
    options |= draw(_one({}, {}, {}, {"backward_passes_per_step": 2}, {"backward_passes_per_step": 3}))
    options |= draw(_one({}, {}, {}, {"op": "sum"}))
    operations = defined(tuple(iterations))
    if _names(operations) & {"kept_scale", "kept_read", "flat"}:
        options.pop("op", None)  # sums do not add up in gradients that a loop keeps
    if "checkpointed" in kinds:  # torch refuses inputs= where a reentrant checkpoint is recomputed
        operations = _without_parts(operations)
    return Program(
        size=size,
        kinds=kinds,
        entry=draw(_one("model", "units")),
        optimizer=draw(st.sampled_from(sorted(LOOP_OPTIMIZERS))),
        plan=draw(_one(None, 0, 1, 2)),
        options=options,
        watched=draw(_one(True, False, False)),
        operations=operations,
    )


def _names(operations: Sequence[Operation]) -> set[str]:
    names = {operation[0] for operation in operations}
    for operation in operations:
        if operation[0] in ("no_sync", "closure"):
            names |= _names(operation[1])
    return names


def _without_parts(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    return tuple(
        ("compute", "once", *operation[2:])
        if operation[:2] == ("compute", "part")
        else (operation[0], _without_parts(operation[1]))
        if operation[0] in ("no_sync", "closure")
        else operation
        for operation in operations
    )
