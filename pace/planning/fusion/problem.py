"""The gradients of a profile as arrays of numbers, without names, for the solver.

A partition is a tuple of groups. A group is a tuple of gradient numbers in order of ready time. Gradients of
different dtypes never share a group. A gradient without bytes is a group of its own, which is never sent.
"""

from dataclasses import dataclass
from itertools import chain

import numpy as np

from pace.documents.options import Options
from pace.documents.profile import ELEMENT_BYTES, Profile
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost_curve import CostCurve, Line
from pace.solver.one_machine import Instance
from pace.solver.partition import Chain
from pace.solver.sending import Buffers

Partition = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionProblem:
    """The gradients of a profile and the cost of an all-reduce, for the search for groups.

    Attributes
    ----------
    ready, tail : arrays of shape (num_gradients,)
        Seconds.
    sizes, element_bytes : integer arrays of shape (num_gradients,)
        The bytes of each gradient and of one of its elements.
    dtypes : integer array of shape (num_gradients,)
        Number of the class of gradients that may share a buffer.
    compute_s
        Length of the window without any all-reduce, in seconds.
    cost
        Cost of an all-reduce, on the compute clock (``pace.solver.compute_clock``).
    slowdown
        How many seconds of wall time one second of the compute clock takes while the network is busy.
    extra
        How much longer an all-reduce takes if it starts while compute runs, on the compute clock; None if
        the profile states nothing.
    backward_s
        Until when compute runs in any case, in seconds (``pace.documents.op_graph.Timing``).
    """

    ready: FloatArray
    tail: FloatArray
    sizes: IntArray
    element_bytes: IntArray
    dtypes: IntArray
    compute_s: float
    cost: CostCurve
    slowdown: float = 1.0
    extra: CostCurve | None = None
    backward_s: float = 0.0

    @classmethod
    def of(cls, profile: Profile, *, barrier: bool | None = None) -> "FusionProblem":
        """Build from a profile.

        With `barrier` no forward op starts before the last all-reduce has ended (default: if the profile's
        update rule is the global norm).
        """
        if barrier is None:
            barrier = profile.update == "global-norm"
        timing = profile.timing
        names = [gradient.dtype for gradient in profile.gradients]
        classes = {name: number for number, name in enumerate(sorted(set(names)))}
        tail = timing.tail_s
        return cls(
            ready=timing.ready_s,
            tail=np.full_like(tail, tail.max(initial=0.0)) if barrier else tail,
            sizes=np.array([gradient.size_bytes for gradient in profile.gradients], dtype=np.int64),
            element_bytes=np.array([ELEMENT_BYTES[name] for name in names], dtype=np.int64),
            dtypes=np.array([classes[name] for name in names], dtype=np.int64),
            compute_s=timing.compute_s,
            cost=profile.clocked_cost,
            slowdown=profile.compute_slowdown,
            extra=profile.clocked_extra,
            backward_s=timing.backward_s,
        )

    def stretch_s(self, carried_s: float) -> float:
        """Return by how many seconds `carried_s` of transfers lengthen a window in wall time."""
        return (self.slowdown - 1) * carried_s

    def least_stretch_s(self, line: Line) -> float:
        """Return the least time by which calls lengthen a window: of one call, on a line below g."""
        total = int(self.sizes.sum())
        return self.stretch_s(line.latency_s + total * line.seconds_per_byte) if total else 0.0

    def buffers(self, partition: Partition) -> Buffers:
        """Return the groups of `partition` as buffers."""
        members = np.fromiter(chain.from_iterable(partition), dtype=np.int64)
        if not len(members):
            empty = np.zeros(0)
            none = np.zeros(0, dtype=np.int64)
            return Buffers(ready=empty, tail=empty, elements=none, element_bytes=none)
        starts = np.concatenate(([0], np.cumsum([len(group) for group in partition])[:-1]))
        element_bytes = self.element_bytes[members[starts]]
        return Buffers(
            ready=np.maximum.reduceat(self.ready[members], starts),
            tail=np.maximum.reduceat(self.tail[members], starts),
            elements=np.add.reduceat(self.sizes[members], starts) // element_bytes,
            element_bytes=element_bytes,
        )

    def classes(self) -> list[IntArray]:
        """Return the gradients of each class in order of ready time, without gradients of no bytes."""
        order = self.sent_by_ready()
        return [order[self.dtypes[order] == number] for number in np.unique(self.dtypes[order])]

    def sent_by_ready(self) -> IntArray:
        """Return the gradients with bytes by ready time, then tail, then size.

        So the order in the profile does not matter. Of gradients that are ready at the same time, the one
        that is needed last must come first, or the chain would not be layered.
        """
        order = np.lexsort((self.dtypes, self.sizes, self.tail, self.ready))
        return order[self.sizes[order] > 0]

    def sent_by_tail(self) -> IntArray:
        """Return the gradients with bytes by tail, then ready time, then size."""
        order = np.lexsort((self.dtypes, self.sizes, self.ready, self.tail))
        return order[self.sizes[order] > 0]

    @property
    def is_layered(self) -> bool:
        """Whether all gradients share a class, and none that is ready later is needed later."""
        classes = self.classes()
        return len(classes) == 1 and self.chain_of(classes[0]).is_layered

    def unsent(self) -> Partition:
        """Return the gradients without bytes, each as its own group."""
        return tuple((int(number),) for number in np.flatnonzero(self.sizes == 0))

    def chain_of(self, members: IntArray) -> Chain:
        """Return the gradients `members`, in that order, as a chain."""
        return Chain(ready=self.ready[members], tail=self.tail[members], sizes=self.sizes[members])


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """A partition of the gradients with bytes, as a local search changes it in place.

    Attributes
    ----------
    members : array of shape (num_sent,)
        The gradients in order of ready time.
    group_of : array of shape (num_sent,)
        The group of each.
    orders, places : arrays of shape (2, num_sent)
        Indices of `members` in order of ready time and in order of tail, and the place of each there.
    """

    members: IntArray
    group_of: IntArray
    orders: IntArray
    places: IntArray

    @classmethod
    def of(cls, problem: FusionProblem, partition: Partition) -> "Grouping":
        """Build from a partition; groups without bytes are left out."""
        members = problem.sent_by_ready()
        place = {int(gradient): number for number, gradient in enumerate(members)}
        group_of = np.empty(len(members), dtype=np.int64)
        for number, group in enumerate(group for group in partition if group[0] in place):
            group_of[[place[gradient] for gradient in group]] = number
        by_tail = [place[int(gradient)] for gradient in problem.sent_by_tail()]
        orders = np.stack([np.arange(len(members)), np.array(by_tail)]).astype(np.int64)
        places = np.argsort(orders, axis=1).astype(np.int64)
        return cls(members=members, group_of=group_of, orders=orders, places=places)

    def partition(self) -> Partition:
        """Return the groups of now, in order of ready time."""
        by_group: dict[int, list[int]] = {}
        for gradient, group in zip(self.members.tolist(), self.group_of.tolist(), strict=True):
            by_group.setdefault(group, []).append(gradient)
        return tuple(tuple(group) for group in by_group.values())


def stops_at_barrier(profile: Profile, options: Options) -> bool:
    """Return whether the forward pass waits for every all-reduce, due to the framework or the update rule."""
    return options.framework is not None or profile.update == "global-norm"


def oracle_instance(buffers: Buffers, cost: CostCurve, slot_s: float | None) -> Instance:
    """Return the buffers as one-machine jobs, in slots if `slot_s` is given."""
    instance = buffers.instance(cost)
    return instance if slot_s is None else instance.in_slots(slot_s)
