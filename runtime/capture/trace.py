"""Marks of one training iteration: which code runs from when on.

Hooks put a mark on one time line wherever the running code changes: at a module's entry and exit,
before a node of the autograd graph runs, around the optimizer's step. From a mark to the next one
is an *interval*; intervals follow one another without gaps, so their durations add up to the
iteration. ``window`` turns them into ops.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any, Literal, NamedTuple

import torch
from torch._C._autograd import _get_sequence_nr
from torch.autograd.graph import GradientEdge, Node
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from pace.runtime.engine.shard_units import Unit
from pace.runtime.transports.device import Clock

MarkKind = Literal["input", "forward", "loss", "capture", "aside", "backward", "after-backward", "optimizer"]


GATHER = "gather"


class Place(NamedTuple):
    """What runs in an interval.

    Attributes
    ----------
    kind
        "input" until the first module is entered, "loss" once the model has returned, "capture"
        for time that capturing itself takes and "aside" for what is not compute: both belong to no op.
    module, operator
        In a forward pass: the innermost module and, at operator level, the function it called; `GATHER` for
        what ``fully_shard`` does before a module.
    call, node
        In a backward pass: the number of the call of backward() and of the node in its graph.
    """

    kind: MarkKind
    module: str = ""
    operator: str = ""
    call: int = -1
    node: int = -1


class Mark(NamedTuple):
    """From `stamp` on `place` runs; autograd nodes created there are numbered from `sequence` on.

    The host had queued the mark at `queued_ns` on its monotonic clock.
    """

    place: Place
    stamp: Any
    sequence: int
    queued_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardGraph:
    """The autograd graph that one call of backward() runs through.

    Attributes
    ----------
    names, sequences
        Per node: its name, and its number in order of creation.
    edges
        (node, next node) as indices; the next node runs later in the backward pass.
    parameters
        For each accumulating node, the parameter that it accumulates into.
    """

    names: tuple[str, ...]
    sequences: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    parameters: dict[int, torch.nn.Parameter]


@dataclass(slots=True, kw_only=True)
class Trace:
    """One iteration: its marks, and in full traces the backward graphs and ready gradients.

    Attributes
    ----------
    marks
        In order; the last one ends the iteration.
    graphs
        One per call of backward().
    ready
        For each parameter's name, the interval in which its gradient was accumulated last.
    gathered
        For each parameter's name that is sharded, the interval in which it was first gathered for use.
    """

    marks: list[Mark] = field(default_factory=list)
    graphs: list[BackwardGraph] = field(default_factory=list)
    ready: dict[str, int] = field(default_factory=dict)
    gathered: dict[str, int] = field(default_factory=dict)

    @property
    def places(self) -> list[Place]:
        """What ran, interval by interval."""
        return [mark.place for mark in self.marks[:-1]]


class Tracer:
    """Traces iterations of `model`, one at a time.

    Parameters
    ----------
    model
        Its modules' entries and exits are marked.
    clock
        Stamps the marks.
    operators
        Mark every function of torch that the forward pass calls, too.
    units
        Units of a model in ``fully_shard``.
    """

    def __init__(
        self, model: torch.nn.Module, clock: Clock, *, operators: bool = False, units: Sequence[Unit] = ()
    ) -> None:
        self._units = units
        self._model = model
        self._clock = clock
        self._operators = operators
        self._hooks = ExitStack()
        self._trace = Trace()
        self._modules: list[str] = []
        self._in_backward = False
        self._to_mark: Sequence[Collection[int]] | None = None

    def start(self, nodes_to_mark: Sequence[Collection[int]] | None = None) -> None:
        """Begin an iteration.

        Parameters
        ----------
        nodes_to_mark
            For each call of backward(), the nodes before which to put a mark. None asks for a full
            trace: every node is marked and the graphs and ready gradients are recorded.
        """
        self._trace = Trace()
        self._modules = []
        self._in_backward = False
        self._to_mark = nodes_to_mark
        for name, module in self._model.named_modules():
            self._hook_module(name, module)
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        for unit in self._units:
            self._hook_unit(unit, [names[each] for each in unit.parameters if each in names])
        if nodes_to_mark is None:
            for name, parameter in self._model.named_parameters():
                if parameter.requires_grad:
                    self._hook_parameter(name, parameter)
        self._hooks.callback(register_optimizer_step_pre_hook(self._before_optimizer).remove)
        self._hooks.callback(register_optimizer_step_post_hook(self._after_optimizer).remove)
        self._hooks.enter_context(_replaced_backward(self._backward))
        if self._operators:
            self._hooks.enter_context(_OperatorMarks(self._enter_operator))
        self._mark(Place("input"))

    def stop(self) -> Trace:
        """End the iteration and take the hooks away."""
        self._mark(Place("capture"))
        self._hooks.close()
        trace, self._trace = self._trace, Trace()
        return trace

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Leave out what happens inside: it belongs to no op. What ran before goes on after it."""
        before = self._trace.marks[-1].place
        self._mark(Place("aside"))
        try:
            yield
        finally:
            self._mark(before)

    def _mark(self, place: Place) -> None:
        stamp = self._clock.now()
        self._trace.marks.append(Mark(place, stamp, _get_sequence_nr(), perf_counter_ns()))

    def _hook_module(self, name: str, module: torch.nn.Module) -> None:
        place = Place("forward", name)

        def enter(_module: torch.nn.Module, _args: Any) -> None:
            # Activation checkpointing runs modules again inside the backward pass: that is backward time.
            if not self._in_backward:
                self._modules.append(name)
                self._mark(place)

        def leave(_module: torch.nn.Module, _args: Any, _output: Any) -> None:
            if not self._in_backward and self._modules:
                self._modules.pop()
                self._mark(Place("forward", self._modules[-1]) if self._modules else Place("loss"))

        # Ours are the innermost hooks: what other hooks do is no part of the module's own time.
        self._hooks.callback(module.register_forward_pre_hook(enter).remove)
        self._hooks.callback(module.register_forward_hook(leave, prepend=True).remove)

    def _hook_unit(self, unit: Unit, names: Sequence[str]) -> None:
        place = Place("forward", unit.name, GATHER)

        def begin(run: Callable[..., Any], *args: Any, **named: Any) -> Any:
            if not self._in_backward:
                self._mark(place)
            return run(*args, **named)

        def gather(run: Callable[..., Any], *args: Any, **named: Any) -> Any:
            if not self._in_backward:
                for name in names:
                    self._trace.gathered.setdefault(name, len(self._trace.marks) - 1)
            return run(*args, **named)

        for method, observer in {"pre_forward": begin, "unshard": gather}.items():
            self._hooks.callback(_observed(unit.group, method, observer))

    def _hook_parameter(self, name: str, parameter: torch.nn.Parameter) -> None:
        def accumulated(_parameter: torch.Tensor) -> None:
            self._trace.ready.pop(name, None)  # the last time counts, and its place in the order
            self._trace.ready[name] = len(self._trace.marks) - 1

        handle = parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._hooks.callback(handle.remove)

    def _enter_operator(self, operator: str) -> None:
        if self._modules and not self._in_backward:
            self._mark(Place("forward", self._modules[-1], operator))

    def _before_optimizer(self, *_: Any) -> None:
        self._mark(Place("optimizer"))

    def _after_optimizer(self, *_: Any) -> None:
        self._mark(Place("input"))

    def _backward(self, run: Callable[[], None], roots: Sequence[Node | None]) -> None:
        self._mark(Place("capture"))
        call = sum(mark.place.kind == "after-backward" for mark in self._trace.marks)
        nodes = walk(roots)
        if self._to_mark is None:
            self._trace.graphs.append(_describe(nodes))
        for number, node in enumerate(nodes):
            if self._wants(call, number, node):
                node.register_prehook(self._node_hook(Place("backward", call=call, node=number)))
        del nodes  # holding them would keep the activations alive
        self._in_backward = True
        self._mark(Place("backward", call=call))
        try:
            run()
        finally:
            self._in_backward = False
            self._mark(Place("after-backward"))

    def _wants(self, call: int, number: int, node: Node) -> bool:
        if self._to_mark is None:
            return not hasattr(node, "variable")
        return call < len(self._to_mark) and number in self._to_mark[call]

    def _node_hook(self, place: Place) -> Callable[[Any], None]:
        marks, now = self._trace.marks, self._clock.now
        # The backward pass may run in a thread of its own, where nodes are numbered anew.
        sequence = _get_sequence_nr()

        def before(_gradients: Any) -> None:
            stamp = now()
            marks.append(Mark(place, stamp, sequence, perf_counter_ns()))

        return before


def _observed(group: Any, name: str, observer: Callable[..., Any]) -> Callable[[], None]:
    """Have a method be called by an observer; return what puts it back."""
    attributes = vars(group)
    before = attributes.get(name)
    attributes[name] = partial(observer, getattr(group, name))

    def put_back() -> None:
        if before is None:
            del attributes[name]
        else:
            attributes[name] = before

    return put_back


def walk(roots: Sequence[Node | None]) -> list[Node]:
    """Return the nodes of the autograd graph from `roots` on, in an order that only its shape decides."""
    found: dict[Node, None] = dict.fromkeys(root for root in roots if root is not None)
    stack = list(found)
    while stack:
        for following, _ in stack.pop().next_functions:
            if following is not None and following not in found:
                found[following] = None
                stack.append(following)
    return list(found)


def _describe(nodes: Sequence[Node]) -> BackwardGraph:
    number = {node: index for index, node in enumerate(nodes)}
    return BackwardGraph(
        names=tuple(node.name() for node in nodes),
        sequences=tuple(node._sequence_nr() for node in nodes),
        edges=tuple(
            (index, number[following])
            for index, node in enumerate(nodes)
            for following, _ in node.next_functions
            if following is not None
        ),
        parameters={index: node.variable for index, node in enumerate(nodes) if hasattr(node, "variable")},
    )


class _OperatorMarks(TorchFunctionMode):
    def __init__(self, mark: Callable[[str], None]) -> None:
        super().__init__()
        self._mark = mark

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name not in ("__get__", "__set__"):
            self._mark(name.strip("_"))
        return func(*args, **(kwargs or {}))


_Observer = Callable[[Callable[[], None], Sequence[Node | None]], None]

# Several models of a process may be traced at once, and end in any order: one replacement serves all.
_observers: list[_Observer] = []
_backward = torch.autograd.backward


@contextmanager
def _replaced_backward(observer: _Observer) -> Iterator[None]:
    # Tensor.backward() comes through here as well. Nothing else shows where a backward pass begins
    # and hands over its graph, the loss's part included, before the pass runs.
    global _backward
    if not _observers:
        _backward = torch.autograd.backward
        torch.autograd.backward = _observed_backward
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)
        if not _observers:
            torch.autograd.backward = _backward


def _observed_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
    several = isinstance(tensors, Sequence) and not isinstance(tensors, GradientEdge)
    roots = [
        root.node if isinstance(root, GradientEdge) else root.grad_fn
        for root in (tensors if several else [tensors])
    ]
    run: Callable[[], None] = partial(_backward, tensors, *args, **kwargs)
    for observer in _observers:
        run = partial(observer, run, roots)
    run()
