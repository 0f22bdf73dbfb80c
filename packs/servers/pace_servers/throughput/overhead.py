"""The time for which a receiver computes after each transfer, fitted to measurements."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from pace.documents.steps import ParsingOverhead
from pace.errors import InvalidOptions
from pace.formats.fit import read_cost_csv


def fit_overhead(size_bytes: npt.ArrayLike, overhead_s: npt.ArrayLike) -> ParsingOverhead:
    """Fit seconds_per_byte * bytes + seconds by least squares, with both coefficients at least 0.

    Parameters
    ----------
    size_bytes, overhead_s : arrays of shape (num_transfers,)
        Bytes of each transfer, and the seconds from its last packet to the end of its parsing.

    Raises
    ------
    InvalidOptions
        If all transfers have one size.
    """
    from scipy.optimize import nnls

    sizes = np.asarray(size_bytes, dtype=np.float64)
    if len(np.unique(sizes)) < 2:
        raise InvalidOptions("all transfers have one size: a line needs two or more")
    # Scaled, so that both columns have the same weight in the solver's tolerance.
    scale = float(sizes.max())
    found, _ = nnls(np.column_stack([sizes / scale, np.ones(len(sizes))]), np.asarray(overhead_s))
    return ParsingOverhead(seconds_per_byte=float(found[0]) / scale, seconds=float(found[1]))


def read_overhead_csv(path: str | Path) -> ParsingOverhead:
    """Fit to a table of bytes and seconds.

    Raises
    ------
    FormatError
        If the file is not such a table.
    InvalidOptions
        If all transfers have one size.
    """
    log = read_cost_csv(path)
    sizes, seconds = zip(*log.samples, strict=True)
    return fit_overhead(sizes, seconds)
