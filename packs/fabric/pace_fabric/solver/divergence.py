"""How far a server's model can be from its replica's, from norms alone.

With momentum gamma a server that applies u_1..u_m after the history h has moved by exactly

    (sum over j = 1..m of gamma^j) h + sum over i of (sum over l = 0..m-i of gamma^l) u_i,

so the norm of that is at most the same sum of norms, with equality for parallel vectors.
"""

from collections.abc import Sequence

from pace.solver.arrays import FloatArray


def geometric(gamma: float, first: int, last: int) -> float:
    """Return the sum of gamma^j for j = first..last; 0 if there is none."""
    return float(sum(gamma**j for j in range(first, last + 1)))


def coefficients(num_updates: int, gamma: float) -> tuple[float, list[float]]:
    """Return what multiplies the history, and what multiplies each update, in order."""
    return geometric(gamma, 1, num_updates), [
        geometric(gamma, 0, num_updates - i) for i in range(1, num_updates + 1)
    ]


def bound(norms: Sequence[float], history_norm: float, gamma: float) -> float:
    """Return a bound on the norm of the difference when the server leads by updates of these norms."""
    of_history, of_updates = coefficients(len(norms), gamma)
    return of_history * history_norm + sum(c * norm for c, norm in zip(of_updates, norms, strict=True))


def history_bound(norms: Sequence[float], history_norm: float, gamma: float) -> float:
    """Return a bound on the norm of the history after updates of these norms."""
    for norm in norms:
        history_norm = gamma * history_norm + norm
    return history_norm


def apply(
    model: FloatArray, history: FloatArray, update: FloatArray, gamma: float
) -> tuple[FloatArray, FloatArray]:
    """Commit an update: return the next model and its history."""
    moved: FloatArray = update + gamma * history
    return model + moved, moved
