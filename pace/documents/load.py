"""What training adds to the times of a profile: calls that take longer while compute runs, and late ranks."""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from pace.documents.base import Document, FrozenDict
from pace.errors import InvalidProfile
from pace.solver.cost_curve import CostCurve

Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Source = Literal["measured", "assumed"]


class Load(Document):
    """How collectives and ranks behave beside compute.

    Attributes
    ----------
    delta
        Bytes and seconds, in order of bytes: how much longer an all-reduce, or a half of one, of so many
        bytes takes if it starts while compute runs. Between two sizes the seconds are interpolated; smaller
        and larger calls take those of the nearest size. Null if it is not known.
    sigma
        For ops by name, the standard deviation of their ends over the ranks, in seconds. Ops between two have
        one between theirs. Null if it is not known.
    delta_source, sigma_source
        Whether each was measured in the job, or is assumed.
    """

    refused_as = InvalidProfile

    delta: tuple[tuple[Annotated[int, Field(ge=1, lt=2**63)], Seconds], ...] | None = None
    delta_source: Source = "measured"
    sigma: Annotated[dict[str, Seconds], AfterValidator(FrozenDict)] | None = None
    sigma_source: Source = "measured"

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for (before, _), (size, _) in pairwise(self.delta or ()):
            if size <= before:
                raise ValueError(
                    f"delta: {size} bytes come after {before}: put sizes in rising order, once each"
                )
        return self

    @property
    def extra(self) -> CostCurve | None:
        """The seconds of `delta` as a function of a call's bytes; None if calls take no longer."""
        if not any(seconds for _, seconds in self.delta or ()):
            return None
        assert self.delta
        sizes, seconds = zip(*self.delta, strict=True)
        return CostCurve(sizes_bytes=sizes, durations_s=seconds, slope_beyond=0.0)


# Calls take no longer while compute runs, and all ranks are ready at once.
NO_LOAD = Load(delta=(), sigma={})
