"""What a log says about the cost of an all-reduce, whatever tool wrote it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pace.errors import FormatError


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLog:
    """Measured all-reduces.

    Attributes
    ----------
    samples
        (bytes, seconds) pairs in the log's order, at least one; sizes above 0.
    workers
        How many took part, or None where the log does not say.
    """

    path: str
    tool: str
    samples: tuple[tuple[float, float], ...]
    workers: int | None


def cost_log(
    path: str | Path, tool: str, samples: Sequence[tuple[float, float]], workers: int | None
) -> CostLog:
    """Make a log of what was read: empty messages are left out, and nothing left is an error."""
    kept = tuple((size, seconds) for size, seconds in samples if size > 0)
    if not kept:
        raise FormatError(path, f"no all-reduce measurements found in what looks like {tool} output")
    if all(seconds == 0 for _, seconds in kept):
        raise FormatError(path, "every measured time is 0")
    return CostLog(path=str(path), tool=tool, samples=kept, workers=workers)
