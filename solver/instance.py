"""The one-machine problem 1 | r_j, q_j, pmtn | Cmax, in continuous and in slotted time, and its solutions.

The jobs are groups of gradients: ready time r, processing time p (of the all-reduce), tail q. Times are in
seconds, or in slots once `in_slots` has rounded them.
"""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray, IntArray

# Quotients such as 1.1 / 0.1 exceed the exact integer by a rounding error.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Jobs of the one-machine problem.

    Attributes
    ----------
    ready, processing, tail : arrays of shape (num_jobs,)
        Finite and not negative.
    """

    ready: FloatArray
    processing: FloatArray
    tail: FloatArray

    def __len__(self) -> int:
        return len(self.ready)

    def in_slots(self, slot_s: float) -> "Instance":
        """Return the instance in slots of `slot_s` seconds: r and p rounded up, q in units of slots.

        This is equation (3) of the PACE paper. A processing time above zero takes at least one slot.
        """
        processing = np.ceil(self.processing / slot_s - ROUNDING)
        return Instance(
            ready=np.ceil(self.ready / slot_s - ROUNDING),
            processing=np.where(self.processing > 0, np.maximum(processing, 1.0), 0.0),
            tail=self.tail / slot_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A preemptive schedule of an instance.

    Attributes
    ----------
    jobs : array of shape (num_pieces,)
        The job that each piece serves, in order of time.
    starts, ends : arrays of shape (num_pieces,)
        When each piece starts and ends.
    completion : array of shape (num_jobs,)
        When each job ends; its ready time if it has nothing to process.
    objective : float
        max(completion + tail); 0 without jobs.
    """

    jobs: IntArray
    starts: FloatArray
    ends: FloatArray
    completion: FloatArray
    objective: float
