"""When a running job profiles itself and asks for a new schedule: the settings, agreed by all ranks."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from pace.errors import InvalidOptions

_VARIABLES = {
    "profile_iterations": ("PACE_PROFILE_ITERATIONS", int),
    "drift_ratio": ("PACE_DRIFT_RATIO", float),
    "drift_iterations": ("PACE_DRIFT_ITERATIONS", int),
    "interval_s": ("PACE_REPLAN_INTERVAL_S", float),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanning:
    """When to profile, and what counts as drift. Rank 0's settings hold for all ranks.

    Attributes
    ----------
    profile_iterations
        How many iterations to record; 4 come before, and a plain one after every fourth. 0: a job never
        profiles itself.
    drift_ratio
        Training drifts when an iteration, or the compute in it, takes so many times longer or shorter than
        in the first iterations under the plan; at least 1.
    stale_ratio
        The same for a schedule that another job profiled, against what it predicts; at least 1. Wider,
        because predictions leave out that sending takes compute where both share cores.
    drift_iterations
        The median of so many iterations counts, on the slowest rank.
    interval_s
        No new profile earlier than this after the last one, nor after a schedule was adopted.
    """

    profile_iterations: int = 20
    drift_ratio: float = 1.2
    stale_ratio: float = 2.0
    drift_iterations: int = 50
    interval_s: float = 600.0

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises
        ------
        InvalidOptions
            Names the setting and what it may be.
        """
        for name, least in (
            ("profile_iterations", 0),
            ("drift_ratio", 1),
            ("stale_ratio", 1),
            ("drift_iterations", 1),
            ("interval_s", 0),
        ):
            if not getattr(self, name) >= least:
                raise InvalidOptions(f"{name} is {getattr(self, name)}, at least {least} is needed")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read PACE_PROFILE_ITERATIONS, PACE_DRIFT_RATIO, PACE_DRIFT_ITERATIONS, PACE_REPLAN_INTERVAL_S.

        Raises
        ------
        InvalidOptions
            When one of them is no number, or one that makes no sense.
        """
        found: dict[str, Any] = {}
        for name, (variable, kind) in _VARIABLES.items():
            value = environment.get(variable)
            if value:
                try:
                    found[name] = kind(value)
                except ValueError:
                    raise InvalidOptions(f'{variable} is "{value}", a number is needed') from None
        return cls(**found)

    def to_json(self) -> str:
        """Serialize for the other ranks."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what ``to_json`` wrote."""
        return cls(**json.loads(text))
