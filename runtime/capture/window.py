"""The ops of a window, laid out from one fully traced iteration.

An iteration as users write it runs forward, loss, backward, update. The window (docs/solver.md) begins at
the backward pass, so the iteration is turned: the intervals from the backward pass on come first,
those before it become the next forward pass. Every interval goes into exactly one op.
"""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from pace.documents.profile import Op
from pace.runtime.capture.trace import GATHER, BackwardGraph, Place, Trace
from pace.runtime.engine.buffers import num_bytes

Granularity = Literal["module", "operator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOp:
    """An op of the window, still without a duration.

    Attributes
    ----------
    intervals
        The intervals of an iteration that it is made of.
    share
        The share of these intervals' time that is its own; below 1 for a part of the update.
    """

    name: str
    intervals: tuple[int, ...]
    share: float = 1.0
    deps: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedWindow:
    """How one iteration's intervals make up a window.

    Attributes
    ----------
    places
        The intervals that an iteration has when only `nodes_to_mark` are marked.
    nodes_to_mark
        For each call of backward(), the nodes at which an op begins.
    producers
        Gradients in the order in which they become ready, each with the name of its op.
    unused
        Parameters that want a gradient and get none.
    """

    places: tuple[Place, ...]
    nodes_to_mark: tuple[frozenset[int], ...]
    ops: tuple[WindowOp, ...]
    producers: dict[str, str]
    unused: tuple[str, ...]

    def measured(self, intervals_s: npt.NDArray[np.float64], stream: str | None = "compute") -> list[Op]:
        """Give every op its mean duration in typical iterations, and the deviation in all of them.

        Typical is the middle half by total time. Means over the same iterations add up to the mean
        of their totals; medians op by op add up to less (by 6 % in a first trial), because single
        ops are late now and then.

        Parameters
        ----------
        intervals_s : array of shape (num_iterations, num_intervals)
            Duration of every interval in seconds.
        """
        typical = middle_half(intervals_s.sum(axis=1))
        ops = []
        for op in self.ops:
            durations = intervals_s[:, list(op.intervals)].sum(axis=1) * op.share
            ops.append(
                Op(
                    name=op.name,
                    duration_s=float(durations[typical].mean()),
                    duration_std_s=float(durations.std(ddof=1)) if len(durations) > 1 else 0.0,
                    deps=op.deps,
                    stream=stream,
                    waits_for=op.waits_for,
                )
            )
        return ops


def middle_half(totals_s: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """Return the indices of the middle half of the totals; of few, all but the extremes."""
    order = np.argsort(totals_s, kind="stable")
    quarter = len(order) // 4
    return order[quarter : len(order) - quarter]


def lay_out(trace: Trace, model: torch.nn.Module, granularity: Granularity = "module") -> CapturedWindow:
    """Lay out the window of a fully traced iteration. O(intervals + edges of the backward graphs).

    A gradient's producer is the backward op in which it was accumulated for the last time. Its
    consumer is the part of the optimizer's step that updates its parameter, which is placed
    directly before the forward op in which autograd first recorded a use of the parameter, or
    ``fully_shard`` gathered it: there the runtime applies it. No consumer lies before a producer, so
    Assumption A holds.
    """
    return _Layout(trace, model, granularity).window()


class _Layout:
    def __init__(self, trace: Trace, model: torch.nn.Module, granularity: Granularity) -> None:
        self._trace = trace
        self._model = model
        self._operators = granularity == "operator"
        self._places = trace.places
        # Modules that compute themselves; what merely calls others is told apart by the nodes it makes.
        self._units = {
            name
            for name, module in model.named_modules()
            if next(module.children(), None) is None
            or next(module.parameters(recurse=False), None) is not None
        }
        self._interval_of_node = {
            (place.call, place.node): interval
            for interval, place in enumerate(self._places)
            if place.kind == "backward"
        }
        self._created: dict[tuple[int, int], int] = {}
        self._heads: list[int] = []
        self._find_heads()

    def window(self) -> CapturedWindow:
        kept = [i for i, place in enumerate(self._places) if place.kind != "backward" or self._heads[i] == i]
        reduced = {full: number for number, full in enumerate(kept)}
        nodes_to_mark = tuple(
            frozenset(
                self._places[i].node
                for i in kept
                if self._places[i].kind == "backward" and self._places[i].call == call
            )
            - {-1}
            for call in range(len(self._trace.graphs))
        )
        start = self._window_start()
        turned = [i for i in kept if i >= start] + [i for i in kept if i < start]
        op_of, members = self._group(turned)
        names = self._name([group[0] for group in members])
        deps = self._dependencies(op_of, len(members))
        consumers = self._consumers(op_of, start)
        optimizer = tuple(reduced[i] for i in kept if self._places[i].kind == "optimizer")
        sizes = {name: num_bytes(parameter) for name, parameter in self._model.named_parameters()}
        updated_bytes = sum(sizes[name] for name in self._trace.ready)

        ops: list[WindowOp] = []
        for op, (name, group) in enumerate(zip(names, members, strict=True)):
            if self._places[group[0]].kind == "optimizer":
                continue
            waits_for = tuple(consumers.get(op, ()))
            before = [names[previous] for previous in sorted(deps[op])]
            if waits_for and optimizer:
                update = f"update/{name.removeprefix('fwd/')}"
                share = sum(sizes[gradient] for gradient in waits_for) / max(updated_bytes, 1)
                ops.append(WindowOp(name=update, intervals=optimizer, share=share, waits_for=waits_for))
                before.append(update)
                waits_for = ()
            ops.append(
                WindowOp(
                    name=name,
                    intervals=tuple(reduced[i] for i in group),
                    deps=tuple(before),
                    waits_for=waits_for,
                )
            )
        consumed = {gradient for waiting in consumers.values() for gradient in waiting}
        rest = tuple(gradient for gradient in self._trace.ready if gradient not in consumed)
        if optimizer and (rest or not consumed):
            share = sum(sizes[gradient] for gradient in rest) / updated_bytes if updated_bytes else 1.0
            ops.append(WindowOp(name="update/rest", intervals=optimizer, share=share, waits_for=rest))
        producers = {name: names[op_of[self._heads[i]]] for name, i in self._trace.ready.items()}
        unused = tuple(
            name for name, p in self._model.named_parameters() if p.requires_grad and name not in producers
        )
        return CapturedWindow(
            places=tuple(self._places[i] for i in kept),
            nodes_to_mark=nodes_to_mark,
            ops=tuple(ops),
            producers=producers,
            unused=unused,
        )

    def _find_heads(self) -> None:
        """For every interval, find the one that begins its op."""
        marks = self._trace.marks
        for i, place in enumerate(self._places):
            if place.kind == "forward":
                makes_nodes = marks[i + 1].sequence > marks[i].sequence
                following = marks[i + 1].place
                split_later = following.module == place.module and following.operator != ""
                inside = f"{place.module}." if place.module else ""
                previous = self._places[i - 1]
                returns = i > 0 and previous.kind == "forward" and previous.module.startswith(inside)
                enters = place.module in self._units and not (place.operator or split_later or returns)
                begins = makes_nodes or enters or i == 0 or place.operator == GATHER
            else:
                begins = True
            self._heads.append(i if begins else self._heads[i - 1])
        numbered = [mark.sequence for mark in marks]
        for call, graph in enumerate(self._trace.graphs):
            for node, sequence in enumerate(graph.sequences):
                created = bisect_right(numbered, sequence) - 1
                self._created[call, node] = self._heads[created] if 0 <= created < len(self._heads) else -1
        last = -1
        for i, place in enumerate(self._places):
            if place.kind != "backward":
                continue
            same_op = self._places[i - 1].kind == "backward" and (
                place.node == -1
                or self._places[last].node == -1
                or (not self._operators and self._site(place) == self._site(self._places[last]))
            )
            self._heads[i] = self._heads[i - 1] if same_op else i
            last = i

    def _site(self, place: Place) -> int:
        """Return the forward interval in which this node of the backward graph was created."""
        return self._created.get((place.call, place.node), -1)

    def _window_start(self) -> int:
        """Return the first interval of the earliest backward() that completes a gradient."""
        intervals = list(self._trace.ready.values())
        calls = {self._places[i].call for i in intervals if self._places[i].kind == "backward"}
        if not calls:
            return 0
        return next(i for i, p in enumerate(self._places) if p.kind == "backward" and p.call == min(calls))

    def _group(self, turned: list[int]) -> tuple[dict[int, int], list[list[int]]]:
        """Put intervals into ops; return the op of every head and the intervals of every op."""
        members: list[list[int]] = []
        op_of: dict[int, int] = {}
        for i in turned:
            place = self._places[i]
            if place.kind in ("capture", "aside"):
                continue
            previous = self._places[members[-1][-1]].kind if members else None
            joins = place.kind in ("input", "loss", "optimizer", "after-backward") and place.kind == previous
            if members and (self._heads[i] != i or joins):
                members[-1].append(i)
            else:
                members.append([i])
            op_of[i] = len(members) - 1
        return op_of, members

    def _name(self, heads: list[int]) -> list[str]:
        names = []
        uses: Counter[str] = Counter()
        for head in heads:
            base = self._base_name(head)
            uses[base] += 1
            names.append(base if uses[base] == 1 else f"{base}#{uses[base]}")
        return names

    def _base_name(self, interval: int) -> str:
        place = self._places[interval]
        if place.kind != "backward":
            return self._forward_name(place)
        if place.node == -1 and interval + 1 < len(self._places):
            place = self._places[interval + 1]  # from the call of backward() to its first node
        if place.kind != "backward":
            return "bwd/start"
        site = self._site(place)
        where = self._forward_name(self._places[site]).removeprefix("fwd/") if site >= 0 else "outside"
        if not self._operators:
            return f"bwd/{where}"
        return f"bwd/{where.split('/')[0]}/{self._trace.graphs[place.call].names[place.node]}"

    def _forward_name(self, place: Place) -> str:
        if place.kind == "forward":
            module = place.module or type(self._model).__name__
            return f"fwd/{module}/{place.operator}" if place.operator else f"fwd/{module}"
        return {"after-backward": "update/prepare", "optimizer": "update/step"}.get(
            place.kind, f"fwd/{place.kind}"
        )

    def _dependencies(self, op_of: dict[int, int], num_ops: int) -> list[set[int]]:
        """Find the data flow: the backward graphs' edges, and turned round the forward pass's."""
        deps: list[set[int]] = [set() for _ in range(num_ops)]

        def add(earlier: int | None, later: int | None) -> None:
            if earlier is not None and later is not None and earlier < later:
                deps[later].add(earlier)

        for call, graph in enumerate(self._trace.graphs):
            for node, following in graph.edges:
                add(self._backward_op(op_of, call, node), self._backward_op(op_of, call, following))
                add(op_of.get(self._created[call, following]), op_of.get(self._created[call, node]))
        return deps

    def _backward_op(self, op_of: dict[int, int], call: int, node: int) -> int | None:
        interval = self._interval_of_node.get((call, node))
        return None if interval is None else op_of.get(self._heads[interval])

    def _consumers(self, op_of: dict[int, int], start: int) -> dict[int, list[str]]:
        """For every op that is the first to use a parameter whose gradient is sent, the gradients' names."""
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        first = {name: self._heads[interval] for name, interval in self._trace.gathered.items()}
        for call, graph in enumerate(self._trace.graphs):
            for name, interval in _first_uses(graph, names, call, self._created).items():
                first[name] = min(interval, first.get(name, interval))
        consumers: dict[int, list[str]] = {}
        for name in self._trace.ready:
            if name in first and 0 <= first[name] < start:
                consumers.setdefault(op_of[first[name]], []).append(name)
        return consumers


def _first_uses(
    graph: BackwardGraph, names: dict[int, str], call: int, created: dict[tuple[int, int], int]
) -> dict[str, int]:
    first: dict[str, int] = {}
    for node, following in graph.edges:
        parameter = graph.parameters.get(following)
        if parameter is None or id(parameter) not in names:
            continue
        name = names[id(parameter)]
        interval = created[call, node]
        first[name] = min(interval, first.get(name, interval))
    return first
