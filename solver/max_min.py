"""Max-min fair sharing: the rates of connections between workers and servers whose links are limited."""

import numpy as np
import numpy.typing as npt

from pace.solver.arrays import FloatArray


def max_min_rates(
    connections: npt.ArrayLike,
    worker_bytes_per_s: npt.ArrayLike,
    server_bytes_per_s: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
) -> FloatArray:
    """Return the rate of every connection under max-min fairness.

    The rates of all connections rise together, each in proportion to its weight; those that cross a saturated
    link are frozen, and the others go on. No rate over its weight can then be raised without lowering one
    that is not larger.

    Parameters
    ----------
    connections : integer array of shape (num_connections, 2)
        Worker and server of each connection, in one direction.
    worker_bytes_per_s, server_bytes_per_s : arrays of shape (num_workers,) and (num_servers,)
        Limits of the links in that direction, positive and finite.
    weights : array of shape (num_connections,)
        Positive; all alike if left out.

    Returns
    -------
    array of shape (num_connections,)
        Bytes per second. O(links * connections), exact up to rounding.

    Raises
    ------
    ValueError
        If a limit or a weight is not positive and finite.

    Notes
    -----
    Bertsekas and Gallager, Data Networks, section 6.5.2.
    """
    from pace.solver.kernels.max_min import share

    pairs = np.asarray(connections, dtype=np.int64).reshape(-1, 2)
    workers = np.asarray(worker_bytes_per_s, dtype=np.float64)
    limit = np.concatenate([workers, np.asarray(server_bytes_per_s, dtype=np.float64)])
    if not (np.isfinite(limit).all() and (limit > 0).all()):
        raise ValueError(f"link rates are {limit.tolist()}: expected positive, finite numbers")
    weight = np.ones(len(pairs)) if weights is None else np.array(weights, dtype=np.float64)
    if weight.shape != (len(pairs),) or not (np.isfinite(weight).all() and (weight > 0).all()):
        raise ValueError(f"weights are {weight.tolist()}: expected {len(pairs)} positive, finite numbers")
    rate = np.zeros(len(pairs))
    share(
        np.ascontiguousarray(pairs[:, 0]),
        pairs[:, 1] + len(workers),
        len(pairs),
        limit,
        weight,
        np.empty(len(limit)),
        np.empty(len(limit), dtype=np.int64),
        np.empty(len(limit)),
        rate,
    )
    return rate
