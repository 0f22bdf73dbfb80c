"""How much bandwidth a utilization needs: of a plan, of the bound, and of other rules."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from pace.errors import InvalidOptions
from pace_sync.documents.outer_sync import OuterLink, OuterSync
from pace_sync.planning.outer.lowering import FragmentSend, steady_state_of, streaming_links
from pace_sync.planning.outer.plan import plan_outer
from pace_sync.planning.outer.rivals import best_of_torchft, strided_fragments, torchft_fragments
from pace_sync.solver.streaming.capacity import least_period

PRECISION = 1e-3
# Beyond these factors, only latency counts, or nothing.
LEAST, MOST = 1e-9, 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededBandwidth:
    """Factors by which the document's bandwidths may be multiplied and still reach a utilization.

    They are within 0.1 %. None where no bandwidth is enough, because of latency or the delay limit.

    Attributes
    ----------
    bound
        No plan reaches the utilization with less.
    """

    utilization: float
    plan: float | None
    bound: float | None
    torchft: float | None
    torchft_one_fragment: float | None
    strided: float | None


def needed_bandwidth(problem: OuterSync, utilization: float = 0.95) -> NeededBandwidth:
    """Return the least factors for this utilization.

    Raises
    ------
    InvalidOptions
        For a utilization that is not between 0 and 1.
    """
    if not 0 < utilization < 1:
        raise InvalidOptions(f"utilization {utilization:g}: give a number between 0 and 1")

    def by(rule: Callable[[OuterSync], list[FragmentSend]]) -> float | None:
        return _least(
            lambda factor: _share(scaled(problem, factor), rule(scaled(problem, factor))), utilization
        )

    def limit(factor: float) -> float:
        least_s = least_period(streaming_links(scaled(problem, factor)), problem.size_bytes)
        return problem.compute_s / least_s

    def planned(factor: float) -> float:
        most = limit(factor)  # the bound alone often tells
        return most if most < utilization else plan_outer(scaled(problem, factor)).predicted.utilization

    return NeededBandwidth(
        utilization=utilization,
        plan=_least(planned, utilization),
        bound=_least(limit, utilization),
        torchft=by(best_of_torchft),
        torchft_one_fragment=by(lambda each: torchft_fragments(each, 1, each.max_delay_steps)),
        strided=by(strided_fragments),
    )


def scaled(problem: OuterSync, factor: float) -> OuterSync:
    """Return a problem whose links all have this multiple of their bandwidth."""
    fields = {name: getattr(problem, name) for name in type(problem).model_fields}
    fields["links"] = tuple(
        OuterLink(name=link.name, bytes_per_s=link.bytes_per_s * factor, latency_s=link.latency_s)
        for link in problem.links
    )
    return OuterSync(**fields)


def _share(problem: OuterSync, fragments: list[FragmentSend]) -> float:
    return problem.compute_s / steady_state_of(problem, fragments).period_s


def _least(reached: Callable[[float], float], wanted: float) -> float | None:
    """Bisect for the least factor; utilization rises with bandwidth."""
    low = high = 1.0
    if reached(1.0) >= wanted:
        while low > LEAST and reached(low) >= wanted:
            low, high = low / 2, low
    elif reached(MOST) < wanted:
        return None
    else:
        while high < MOST and reached(high) < wanted:
            low, high = high, 2 * high
    while high / low > 1 + PRECISION:
        middle = math.sqrt(low * high)
        if reached(middle) >= wanted:
            high = middle
        else:
            low = middle
    return high
