"""Training programs as data: what a loop does, one operation after another, the same on every rank.

A program is printed as the Python expression that makes it, so that one that fails can be pasted as a
regression test. Operations are tuples: a name, then arguments. Indices named `unit` and `number` are taken
modulo the number of units and of parameters.

======================================  ======================================================================
operation                               what the loop does
======================================  ======================================================================
("compute", style, paths)               forward and backward; rank r runs the units ``paths[r]``, none at all
                                        for an empty path. Styles: "once", "retain" (backward twice through
                                        one graph), "two" (two graphs), "sum" (one backward of two losses),
                                        "part" (``backward(inputs=...)`` with the first unit's parameters),
                                        "same" (as "once", but every rank takes the same batch),
                                        "penalty" (with a penalty of parameters kept from before wrapping),
                                        "late" (through a module made after wrapping, with shared parameters)
("forward", path)                       an evaluation
("loss",)                               all-reduces the latest losses with torch.distributed
("read", number, how)                   reads one gradient; every gradient for None
("log", number)                         rank 0 alone reads a gradient
("norm", limit), ("value", limit)       clip_grad_norm_, clip_grad_value_
("scale", factor), ("noise", seed)      in place on every gradient; alike on every rank
("decay", factor), ("data", limit)      adds weights to gradients; clamps ``p.grad.data``
("replace", number)                     ``p.grad = p.grad.clamp(...)``
("assign", number)                      ``p.grad = t`` without a look at what was there; a t for each rank
("drop", number)                        ``p.grad = None``
("zero", who, set_to_none)              "optimizer", "model", "hand", or the index of a unit
("freeze", unit), ("unfreeze", unit)    requires_grad_
("no_sync", operations)                 a block of operations that only accumulate
("step",), ("closure", operations)      step(), step(closure)
("scaled", paths, overflow)             compute of a scaled loss; rank `overflow` multiplies its by infinity
("unscale",), ("scaler_step",)          unscale_(optimizer); scaler.step(optimizer) and scaler.update()
("rate", factor)                        changes the learning rate
("weights", way)                        reads parameters: "parameters", "groups", "state", "attribute", "kept"
("clamp", limit, way)                   clamps parameters: "parameters", "groups", "data", "kept"
("state",), ("save",), ("restore",)     optimizer.load_state_dict(optimizer.state_dict()); snapshots of both
("keep",), ("compare",)                 keeps references to the gradients; reads them later
("kept_scale", factor), ("kept_read",)  scales, clears (by 0.0), reads gradients by the references of "keep"
("flat",), ("flat_scale", factor)       every gradient becomes a part of a flat buffer; scales or clears that
("alias", way)                          keeps the parameters' memory: "data", "state" (state_dict()), "numpy"
("aliased",), ("alias_clamp", limit)    reads or clamps what was kept so
("fork", path), ("func", path)          an evaluation in a forked process; gradients per sample by torch.func
("kept_rate", factor)                   changes the learning rate in groups kept from before wrapping
("state_hold",), ("state_read",)        keeps the tensors of optimizer.state; reads them
("state_scale", factor)                 changes what was kept so
("state_edit", factor)                  changes the tensors of optimizer.state
("patch", factor), ("unpatch",)         has the optimizer's step scale gradients before, and weights after
("synchronize",), ("report",)           of the wrapper
======================================  ======================================================================
"""

from dataclasses import dataclass, field, replace
from pprint import pformat
from typing import Any

Operation = tuple[Any, ...]

_THROUGH_KEPT = ("kept_scale", "kept_read", "flat_scale")

# Operations in which user code looks at gradients, or has them reduced.
READS = frozenset(
    ("read", "norm", "value", "scale", "noise", "decay", "data", "replace", "unscale", "scaler_step", "keep")
) | {"compare", "synchronize", "report", "kept_scale", "kept_read", "flat_scale"}

# Operations that add to gradients.
_ADDS = frozenset(("compute", "scaled", "assign", "no_sync", "closure"))

# Operations that drop all gradients, or make zeros of them, without looking at them.
_FULL_CLEARS = frozenset(
    ("zero", who, set_to_none) for who in ("optimizer", "model") for set_to_none in (True, False)
) | {("zero", "hand", True)}


@dataclass(frozen=True, kw_only=True)
class Program:
    """A training loop on some ranks, with a model, an optimizer and the wrapper's options.

    Attributes
    ----------
    kinds
        What every unit of the model is; see ``loop_models``.
    entry
        Whether the loop calls the "model" or its "units".
    plan
        The seed of a shuffled schedule; None for the plan that the runtime makes.
    watched
        Whether weights are read after every step.
    wrapping
        How the model is wrapped in DistributedDataParallel: a key of ``loop_trainer.WRAPPINGS``. None if it
        is not wrapped.
    """

    size: int
    kinds: tuple[str, ...]
    optimizer: str
    operations: tuple[Operation, ...]
    entry: str = "model"
    plan: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    watched: bool = True
    wrapping: str | None = None

    def __str__(self) -> str:
        return pformat(self, width=110)


def defined(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Leave out what plain training itself cannot define, since ranks would do different things.

    Left out are: a gradient that rank 0 alone reads before the others clear theirs or have a further backward
    pass; an assignment of a tensor that differs between ranks after gradients were read, or while they are
    kept (they are the same on all ranks then); looking at gradients in no_sync on top of others; a rank
    without a backward pass that changes gradients reduced before, waits for other ranks in a collective
    before it steps, or decides about the step by gradients that it cannot see, as a loss scaler does; use of
    kept gradients where a rank had none, or right after no_sync, when they hold this rank's own. Where a rank
    had no backward pass, others have looked at gradients and all go on, a step is added: that rank cannot
    know whether it is among those that others have seen what it computes next. So it is in the end: it would
    be gone when others look.
    """
    whole = _Filter()
    kept = whole.run(operations)
    return (*kept, ("step",)) if whole.idle else kept


def wrapped(program: Program, wrapping: str) -> Program:
    """Have DistributedDataParallel carry the model.

    It averages, and its ``no_sync`` lasts until a forward pass outside of it, which so follows every block.
    """
    options = {
        name: value
        for name, value in program.options.items()
        if name not in ("op", "backward_passes_per_step")
    }
    once = ("compute", "once", ((0,),) * program.size)
    operations = tuple(
        each
        for operation in _in_the_model(program.operations)
        for each in ((operation, once) if operation[0] == "no_sync" else (operation,))
    )
    return replace(program, wrapping=wrapping, entry="model", options=options, operations=operations)


def _in_the_model(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Have no parameter be used outside of the model, nor the model in torch.func, which DDP cannot."""
    return tuple(
        (operation[0], "once", operation[2])
        if operation[:2] in (("compute", "penalty"), ("compute", "late"))
        else (operation[0], _in_the_model(operation[1]))
        if operation[0] in ("no_sync", "closure")
        else operation
        for operation in operations
        if operation[0] != "func"
    )


class _Filter:
    def __init__(self) -> None:
        self.read = False  # since the last backward pass or the last dropped gradients
        self.clean = True  # no rank has a reduced gradient
        self.computed = False  # some rank has computed gradients since they were dropped
        self.frozen = False  # some unit was frozen once
        self.idle = False  # some rank had no backward pass since the last step or the last dropped gradients
        self.clears = 0  # how often all gradients were dropped since the last step
        self.flat = False  # gradients were put into a flat buffer once
        self.quiet = False  # gradients only added up in no_sync since they were reduced
        self.kept_alike = False  # all ranks keep the same gradients

    def run(self, operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
        kept: list[Operation] = []
        for at, operation in enumerate(operations):
            name = operation[0]
            if name in _ADDS and self.idle and self.read:
                kept.append(("step",))
                self._follow(("step",))
            if name == "no_sync":
                kept.append(("no_sync", self._inside(operation[1])))
                self.read, self.computed, self.quiet = False, True, True
                continue
            if name == "closure":
                self.read = False
                kept.append(("closure", self.run(operation[1])))
                self.read, self.clean = True, False
                self._follow(("step",))
                continue
            if name == "log" and not _everybody_reduces_next(operations[at + 1 :], idle=self.idle):
                continue
            if name == "assign" and (self.read or self.flat or self.kept_alike):
                continue
            if name == "loss" and self.idle:
                continue
            if name == "flat" and (self.idle or self.computed or not self.clean):
                continue
            if name in _THROUGH_KEPT and (self.idle or self.quiet):
                continue
            if name in ("kept_scale", "kept_read") and not self.kept_alike:
                continue
            if name == "flat_scale" and not self.flat:
                continue
            self.flat = self.flat or name == "flat"
            if name == "keep":
                self.kept_alike = not self.idle
            if name == "drop" and self.idle:
                continue
            if name == "zero" and self.idle and not self._may_clear(operation):
                kept.append(("step",))
                self._follow(("step",))
            if name == "scaled":
                operation = (name, self._full(operation[1]), operation[2])  # what is kept
            if name == "compute":
                operation = (name, operation[1], self._paths(operation[2]))  # what is kept
            kept.append(operation)
            self._follow(operation)
        return tuple(kept)

    def _may_clear(self, operation: Operation) -> bool:
        """Whether gradients may be dropped where some rank had no backward pass.

        Such a rank must step before that, if the others have looked at gradients. Otherwise it must be able
        to tell that this is not the usual ``zero_grad()`` at a step's start.
        """
        return self.clears > 0 and not self.read and operation in _FULL_CLEARS

    def _inside(self, operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
        alone = self.clean and not self.computed
        allowed = ("compute", "read", "scale", "forward") if alone else ("compute", "forward")
        return tuple(
            (each[0], each[1], self._paths(each[2])) if each[0] == "compute" else each
            for each in operations
            if each[0] in allowed
        )

    def _paths(self, paths: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        if self.frozen:  # the first unit always trains, so that whoever has a path has a backward pass
            paths = tuple((0, *path) if path else path for path in paths)
        if not self.clean:
            paths = self._full(paths)
        self.idle = self.idle or not all(paths)
        return paths

    def _full(self, paths: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        longest = max(paths, key=len)
        return tuple(path or longest for path in paths)

    def _follow(self, operation: Operation) -> None:
        name = operation[0]
        self.frozen = self.frozen or name == "freeze"
        if name in ("step", "zero"):
            self.idle = False
        if name in ("step", "zero", "compute", "scaled") or name in READS:
            self.quiet = False
        if name == "step":
            self.clears = 0
        elif operation in _FULL_CLEARS:
            self.clears += 1
        if name in ("compute", "scaled", "assign"):
            self.read, self.computed = False, True
        elif name in ("step", "flat") or (self.computed and (name in READS or name == "log")):
            self.read, self.clean = True, False
        elif name == "zero" and operation[1] in ("optimizer", "model", "hand"):
            self.read = not operation[2]
            self.clean = operation[2]
            self.computed = self.computed and not operation[2]


def _everybody_reduces_next(operations: tuple[Operation, ...], *, idle: bool) -> bool:
    """Whether all ranks read gradients, step or wait in a collective before they compute or clear more."""
    for name, *_ in operations:
        if name in READS or name == "step" or (name == "loss" and not idle):
            return True
        if name in _ADDS or name in ("zero", "drop"):
            return False
    return False
