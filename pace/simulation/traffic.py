"""What a policy puts on the network: transfers, their order, and what they carry."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pace.documents.profile import Profile
from pace.solver.arrays import FloatArray, IntArray

T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The transfers of one window, on the compute clock (``pace.solver.compute_clock``).

    Attributes
    ----------
    release_s : array of shape (num_transfers,)
        When each may go at the earliest, in seconds from the window's start.
    duration_s : array of shape (num_transfers,)
        How long the network needs for each.
    size_bytes : integer array of shape (num_transfers,)
        What each takes of the credit.
    priority : array of shape (num_transfers,)
        Smaller goes first among those released; ties by index.
    after : integer array of shape (num_transfers,)
        A transfer that must end before, or -1.
    carriers : tuple of integer arrays, one for each gradient
        The transfers that must end before the gradient is reduced; none for one without bytes.
    """

    release_s: FloatArray
    duration_s: FloatArray
    size_bytes: IntArray
    priority: FloatArray
    after: IntArray
    carriers: tuple[IntArray, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a policy uses the network.

    Attributes
    ----------
    credit_bytes
        Bytes that may be in flight; one transfer always may.
    overshoots
        Whether a transfer is admitted as soon as any credit is left, whatever its size.
    in_order
        Whether transfers go strictly by priority, waiting for one that is not released.
    barrier
        Whether the forward pass waits for every gradient.
    sharded
        Whether updates are made between two halves: where they wait for a norm, it is among the transfers.
        Otherwise a norm makes the forward pass wait for every gradient.
    ideal
        Whether transfers take no longer while compute runs.
    """

    credit_bytes: float = 0.0
    overshoots: bool = False
    in_order: bool = False
    barrier: bool = False
    sharded: bool = False
    ideal: bool = False


class Sender(Protocol):
    """A policy made ready for one profile."""

    @property
    def rules(self) -> Rules:
        """How it uses the network."""

    def traffic(self, ready_s: FloatArray) -> Traffic:
        """Return the transfers of a window in which gradients become ready at `ready_s`."""


class Policy(Protocol):
    """A rule for sending gradients."""

    def prepare(self, profile: Profile) -> Sender:
        """Decide all that is decided before training, from the profile."""


def over_runs(operation: np.ufunc, values: NDArray[T], lengths: IntArray) -> NDArray[T]:
    """Reduce runs of values, none of them empty, to one each."""
    reduced: NDArray[T] = operation.reduceat(values, np.cumsum(lengths) - lengths)
    return reduced
