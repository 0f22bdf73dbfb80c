"""TicTac's orders and metrics (Hashemi, Abdu Jyothi, Campbell, MLSys 2019).

Algorithms and equations have the numbers of its early version (arXiv 1803.03288v1): Algorithm 1 updates
properties, Algorithm 2 is the timing-aware order (TAO; later TAC), Algorithm 3 the timing-independent order
(TIO; later TIC). Equations 1 to 4 are the metrics, and equation 5 compares two transfers.

They are defined on a worker's DAG of compute ops and the transfers that these wait for. Here a transfer is
given by its duration, and an op by its duration and the transfers that it or an ancestor waits for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pace.documents.profile import Profile
from pace.errors import InvalidProfile
from pace.solver.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferDag:
    """The ops and transfers of a worker, as the orders need them.

    Attributes
    ----------
    transfer_s : array of shape (num_transfers,)
        Duration of every transfer.
    op_s : array of shape (num_ops,)
        Duration of every compute op that waits for a transfer.
    waits : boolean array of shape (num_ops, num_transfers)
        Which transfers each op waits for, ancestors' included.
    channels : integer array of shape (num_transfers,)
        The number of the channel that carries each transfer; None if there is only one channel.
    """

    transfer_s: FloatArray
    op_s: FloatArray
    waits: BoolArray
    channels: IntArray | None = None

    @property
    def channel_numbers(self) -> IntArray:
        """The channel of every transfer."""
        return np.zeros(len(self.transfer_s), dtype=np.int64) if self.channels is None else self.channels

    @classmethod
    def of(cls, profile: Profile) -> "TransferDag":
        """Build from a profile: its all-reduces are the transfers."""
        index = {gradient.name: number for number, gradient in enumerate(profile.gradients)}
        waits = np.zeros((len(profile.ops), len(index)), dtype=bool)
        for number in profile.graph.order:
            for before in profile.graph.predecessors[number]:
                waits[number] |= waits[before]
            waits[number, [index[name] for name in profile.ops[number].waits_for]] = True
        waiting = waits.any(axis=1)
        sizes = [gradient.size_bytes for gradient in profile.gradients]
        return cls(
            transfer_s=profile.cost(sizes) if sizes else np.zeros(0),
            op_s=profile.graph.durations_s[waiting],
            waits=waits[waiting],
        )


def fastest(runs: Sequence[Profile]) -> Profile:
    """Return the first of several profiles of one job, with the shortest measured duration of every op.

    TicTac's time oracle: what disturbs a run only lengthens it, so the minimum over runs is the most robust
    estimate.

    Raises
    ------
    InvalidProfile
        If there is none, or the profiles have different ops.
    """
    if not runs:
        raise InvalidProfile("no runs: the minimum over runs needs one or more profiles")
    names = [op.name for op in runs[0].ops]
    for number, run in enumerate(runs[1:], start=2):
        if [op.name for op in run.ops] != names:
            raise InvalidProfile(f"run {number} has other ops than the first: give profiles of one job")
    shortest = np.min([[op.duration_s for op in run.ops] for run in runs], axis=0)
    return runs[0].replace(
        ops=tuple(
            op.model_copy(update={"duration_s": float(duration)})
            for op, duration in zip(runs[0].ops, shortest, strict=True)
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """The properties of each transfer in Algorithm 1: arrays of shape (num_transfers,), in seconds.

    Attributes
    ----------
    unlocked_s
        P: compute that waits only for this outstanding transfer.
    impending_s
        M+: the least outstanding communication of an op that waits for this and other transfers; inf without
        one.
    """

    unlocked_s: FloatArray
    impending_s: FloatArray


def properties(dag: TransferDag, outstanding: BoolArray) -> Properties:
    """Return the properties (Algorithm 1, UpdateProperties) when the transfers in `outstanding` are left.

    Channels work in parallel, so an op's M, its outstanding communication, is that of its busiest channel.
    """
    waits = dag.waits & outstanding
    count = waits.sum(axis=1)
    single = count == 1
    unlocked = waits[single].T.astype(np.float64) @ dag.op_s[single]
    impending = np.full(len(dag.transfer_s), np.inf)
    several = waits[count > 1]
    channels = dag.channel_numbers
    busy = [
        several[:, channels == channel] @ dag.transfer_s[channels == channel]
        for channel in np.unique(channels)
    ]
    communication = np.max(busy, axis=0) if busy else np.zeros(len(several))
    for row, total in zip(several, communication, strict=True):
        impending[row] = np.minimum(impending[row], total)
    return Properties(unlocked_s=unlocked, impending_s=impending)


def tio(dag: TransferDag) -> FloatArray:
    """Return priorities in the timing-independent order (Algorithm 3): M+ if each transfer takes 1 s."""
    counted = TransferDag(
        transfer_s=np.ones_like(dag.transfer_s),
        op_s=np.zeros_like(dag.op_s),
        waits=dag.waits,
        channels=dag.channels,
    )
    found = properties(counted, np.ones(len(dag.transfer_s), dtype=bool))
    return found.impending_s


def tao(dag: TransferDag) -> FloatArray:
    """Return places in the timing-aware order (Algorithm 2): take one that no other precedes, repeat.

    A precedes B if min(P_B, M_A) < min(P_A, M_B) (eq. 5). Of the transfers that no other precedes, the one
    with the smallest M+ is taken, as in the paper. The paper leaves other ties open. Here the shorter
    transfer is taken, then the one that unlocks more, then the one for which more compute waits, then one by
    its place in the graph, so that the order does not depend on how transfers are numbered.

    With its ties, the paper's comparator is not transitive: of transfers with (P, M, M+) = (1, 1, 5),
    (2, 1, 6) and (1, 2, 4), each precedes the next, and the last precedes the first. So "the one that
    precedes all others" may not exist. Equation 5 alone has no such cycles.

    The comparator printed in Algorithm 2 returns the opposite of equation 5: by it, of two transfers of equal
    length the one that unlocks less compute would go first. So this uses the equation.
    """
    from pace.simulation import kernels

    # Ops that wait for the same transfers are merged into one op with their total duration.
    waits, same = np.unique(dag.waits, axis=0, return_inverse=True)
    rows, columns = np.nonzero(waits)
    rank = np.empty(len(dag.transfer_s), dtype=np.int64)
    rank[np.lexsort((_labels(dag), -(dag.op_s @ dag.waits)))] = np.arange(len(rank))
    place = np.empty(len(dag.transfer_s), dtype=np.int64)
    kernels.precede(
        dag.transfer_s,
        np.bincount(same.reshape(-1), weights=dag.op_s, minlength=len(waits)).astype(np.float64),
        columns.astype(np.int64),
        np.searchsorted(rows, np.arange(len(waits) + 1)).astype(np.int64),
        dag.channel_numbers,
        rank,
        place,
    )
    return place.astype(np.float64)


def _labels(dag: TransferDag) -> IntArray:
    """Return a number for each transfer that depends on its place in the graph, not on its own number.

    Two transfers have the same label if their durations, their ops and channels, the other transfers of
    these, and so on, have the same durations (color refinement, with hashes of multisets for colors).
    """
    one = np.eye(int(dag.channel_numbers.max(initial=-1)) + 1, dtype=bool)
    groups = np.vstack([dag.waits, one[:, dag.channel_numbers]])
    weight = np.concatenate([dag.op_s, np.full(len(one), -1.0)])
    group_label, label = _mixed(_bits(weight)), _mixed(_bits(dag.transfer_s))
    told_apart, before = len(np.unique(label)), 0
    while told_apart > before:
        group_label = _mixed(group_label + np.matmul(groups, label, dtype=np.uint64))
        label = _mixed(label + np.matmul(groups.T, group_label, dtype=np.uint64))
        told_apart, before = len(np.unique(label)), told_apart
    return label.view(np.int64)


def _bits(seconds: FloatArray) -> npt.NDArray[np.uint64]:
    bits: npt.NDArray[np.uint64] = np.array(seconds, dtype=np.float64).view(np.uint64)
    return bits


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Spread the bits of numbers, so that sums of results identify multisets (splitmix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values


def makespan_limits(busy_s: npt.ArrayLike) -> tuple[float, float]:
    """Return TicTac's theoretical worst and best makespan, U and L (equations 1 and 2).

    U is the time of all ops and transfers one after another, L that of the busiest resource.

    Parameters
    ----------
    busy_s
        Seconds of work of each resource: compute and channels.
    """
    busy = np.asarray(busy_s, dtype=np.float64)
    return float(busy.sum()), float(busy.max(initial=0.0))


def ordering_efficiency(busy_s: npt.ArrayLike, makespan_s: float) -> float:
    """Return TicTac's E = (U - makespan) / (U - L) (equation 3); 1 where no order matters."""
    worst, best = makespan_limits(busy_s)
    return (worst - makespan_s) / (worst - best) if worst > best else 1.0


def ordering_speedup(busy_s: npt.ArrayLike) -> float:
    """Return TicTac's S = (U - L) / L (equation 4): how much faster the best makespan is than the worst.

    At most the number of resources less one; 0 where nothing overlaps.
    """
    worst, best = makespan_limits(busy_s)
    return (worst - best) / best if best else 0.0
