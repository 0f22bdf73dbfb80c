"""How long counted work takes on a device of stated rates: for profiles that are computed, not measured."""

from dataclasses import dataclass
from typing import Self

from pace.errors import InvalidOptions

# 10^9 bytes a second for every 10^12 operations: a GTX 1080 Ti's data sheet has 484 beside 11.3.
MEMORY_GBYTES_PER_TFLOP = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """What a device sustains, as opposed to its peak.

    Attributes
    ----------
    tflops
        10^12 operations of matrix products in a second.
    memory_gbytes_per_s
        10^9 bytes read and written in a second.
    """

    tflops: float
    memory_gbytes_per_s: float

    @classmethod
    def of(cls, device_tflops: float, memory_gbytes_per_s: float | None) -> Self:
        """Return the rates, with ``MEMORY_GBYTES_PER_TFLOP`` where the memory's is not given.

        Raises
        ------
        InvalidOptions
            If one is not positive.
        """
        if memory_gbytes_per_s is None:
            memory_gbytes_per_s = device_tflops * MEMORY_GBYTES_PER_TFLOP
        given = {"device_tflops": device_tflops, "memory_gbytes_per_s": memory_gbytes_per_s}
        for option, value in given.items():
            if not 0 < value < float("inf"):
                raise InvalidOptions(f"{option} is {value}: expected a positive number")
        return cls(tflops=device_tflops, memory_gbytes_per_s=memory_gbytes_per_s)

    def duration_s(self, flops: float, moved_bytes: float) -> float:
        """Return the time of one piece of work: the slower of its matrix products and its memory traffic."""
        return max(flops / (self.tflops * 1e12), moved_bytes / (self.memory_gbytes_per_s * 1e9))
