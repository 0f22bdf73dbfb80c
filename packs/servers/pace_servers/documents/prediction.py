"""What ``pace predict`` is asked and what it answers; shared by Python, the command line and the service."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from pace.documents.base import ComputedDocument
from pace.documents.options import NETWORK, DescribedOptions, For
from pace.documents.profile import Seconds
from pace.documents.steps import (
    LinkDiscipline,
    ShareSpread,
    ShareSpreadBytes,
    refuse_size_without_spread,
)
from pace.whatif.results import to_csv
from pace_servers.documents.fleet import Fleet

AS_RECORDED = "as recorded"
Count = Annotated[int, Field(ge=1, le=10_000)]
Once = AfterValidator(lambda values: tuple(dict.fromkeys(values)))

Trusted = Literal["simulation", "closed_network", "neither"]


class PredictionOptions(DescribedOptions):
    """Settings to predict, and how to simulate them.

    For other numbers of servers than the recorded one, parameters are placed on servers again, which is an
    extrapolation.
    """

    workers: Annotated[
        tuple[Count, ...], Field(max_length=1000), Once, For(unset="1-8", example="1-8 or 1,2,4,8")
    ] = (1, 2, 3, 4, 5, 6, 7, 8)
    """Numbers of workers to predict."""

    servers: Annotated[
        tuple[Count, ...], Field(max_length=100), Once, For(unset=AS_RECORDED, example="1,2")
    ] = ()
    """Numbers of parameter servers to predict."""

    bandwidth_gbps: Annotated[
        tuple[Annotated[float, Field(gt=0, le=8e6, allow_inf_nan=False)], ...],
        Field(max_length=100),
        For(unset=AS_RECORDED, example="1,5,10 or 1:25:1 (from:to:step)", panel=NETWORK),
    ] = ()
    """Link bandwidths in Gbit/s of payload."""

    discipline: Annotated[LinkDiscipline | None, For(unset=AS_RECORDED, panel=NETWORK)] = None
    """How a link orders transfers: fifo, window, first-service-first, adaptive, tic, reverse or random."""

    window_bytes: Annotated[
        Annotated[int, Field(gt=0, le=2**53)] | None,
        For(unset=AS_RECORDED, needs=("discipline", "window"), panel=NETWORK),
    ] = None
    """Bytes of a stream that may be under way at once."""

    share_spread: Annotated[ShareSpread | None, For(unset=AS_RECORDED, panel=NETWORK)] = None
    """Standard deviation of the logarithm of the shares that simultaneous transfers get of a link; 0.02 for a
    good network. If it is given, the recorded `share_spread_bytes` does not apply."""

    share_spread_bytes: Annotated[
        ShareSpreadBytes | None, For(unset="transfers of all sizes vary equally", panel=NETWORK)
    ] = None
    """Size in bytes of the transfers with which `share_spread` was measured; larger transfers vary less."""

    fleet: Fleet = Fleet()
    """How workers differ from the recorded one."""

    steps: Annotated[int, Field(ge=2, le=1_000_000), For()] = 400
    """Number of steps to simulate for each worker, warm-up included."""

    skip: Annotated[int, Field(ge=0), For()] = 50
    """Number of warm-up steps to discard."""

    seeds: Annotated[int, Field(ge=1, le=1000), For()] = 5
    """Number of simulations of each setting, with different seeds."""

    at_workers: Annotated[
        Count | None,
        For(unset="the knee, beyond which a worker adds less than a quarter of the first one's throughput"),
    ] = None
    """Number of workers that you have: the advice is for this number."""

    advice: Annotated[bool, For(panel="Output")] = True
    """Compute what one more worker, one more server, faster links and faster compute would gain."""

    @model_validator(mode="after")
    def _something_is_measured(self) -> Self:
        if not self.workers:
            raise ValueError("no number of workers is given")
        if self.skip >= self.steps:
            raise ValueError(f"{self.skip} of {self.steps} steps are skipped: nothing is left to measure")
        return self

    @model_validator(mode="after")
    def _size_of_a_spread_that_is_given(self) -> Self:
        refuse_size_without_spread(self.share_spread, self.share_spread_bytes)
        return self

    @property
    def num_points(self) -> int:
        """How many combinations are predicted."""
        return len(self.workers) * max(len(self.servers), 1) * max(len(self.bandwidth_gbps), 1)


class LinkUse(ComputedDocument):
    """One direction of one host's link, and the share of its rate that was in use."""

    host: Literal["server", "worker"]
    number: int
    direction: Literal["downlink", "uplink"]
    utilization: float


class StalenessShare(ComputedDocument):
    """Share of updates with a staleness: the number of others' updates since the pull."""

    staleness: int
    share: float


class CoarseModels(ComputedDocument):
    """Predictions of simpler models, in examples per second.

    Attributes
    ----------
    cynthia
        Model of Zheng et al., ICPP 2019: compute, stretched by the use of the link, plus two transfers.
    closed_network
        Mean value analysis of a closed queueing network of links, fitted to one worker's step (after Lin et
        al., MASCOTS 2018).
    bound
        Upper bound: the smaller of the throughput of workers that never wait for one another, and of what the
        links carry.
    """

    cynthia: float
    closed_network: float
    bound: float


class PredictedPoint(ComputedDocument):
    """One combination of workers, servers and link.

    Attributes
    ----------
    throughput, low, high
        Examples per second: mean over the simulations, and their 5th and 95th percentiles.
    step_s
        Mean duration of one worker's step, including its wait at a barrier.
    bottleneck
        Link that is in use at least 75 % of the time; "workers" if there is none.
    links
        Use of every link, servers' links first.
    staleness
        Distribution of the updates' staleness; empty if nothing is pushed.
    extrapolated
        Whether parameters were placed on other servers than in the recording.
    """

    workers: int
    servers: int
    bandwidth_gbps: float
    throughput: float
    low: float
    high: float
    step_s: Seconds
    bottleneck: str
    links: tuple[LinkUse, ...]
    staleness: tuple[StalenessShare, ...]
    mean_staleness: float
    coarse: CoarseModels
    extrapolated: bool


class Improvement(ComputedDocument):
    """Effect of one change: relative gain of throughput, with its 5th and 95th percentiles."""

    change: Literal["one more worker", "one more server", "links twice as fast", "compute twice as fast"]
    throughput: float
    gain: float
    low: float
    high: float


class PredictedCurve(ComputedDocument):
    """Throughput over workers, with one number of servers and one link.

    Attributes
    ----------
    knee_workers
        The knee: the largest number up to which each further worker adds at least a quarter of the first
        worker's throughput, dips left aside. None if this holds up to the largest requested number.
    balance_workers
        Number of workers at which the busiest link is full: the time of one worker's step, divided by the
        time of its bytes on this link. None if nothing is sent.
    at_workers
        Number of workers that the improvements are for: the requested number, the knee, or the largest one.
    improvements
        Gain of each change at that number of workers.
    dips
        Numbers of workers with over 5 % less throughput than their neighbors suggest, because the workers
        wait for one another in lock step.
    """

    servers: int
    bandwidth_gbps: float
    knee_workers: int | None
    balance_workers: float | None
    at_workers: int | None
    improvements: tuple[Improvement, ...]
    dips: tuple[int, ...]


class ThroughputPrediction(ComputedDocument):
    """Predicted throughput, bottlenecks and staleness at every scale.

    Attributes
    ----------
    steps_sha256
        SHA-256 of the steps document.
    unit
        What throughput counts per second.
    replay_error
        Median relative error of the recorded steps, replayed one by one; None if the document has no start
        times.
    trusted
        Which prediction to use: "simulation"; "closed_network" if the replay is so far off that the simpler
        model is better; "neither" if the document's link rate differs from the recorded transfers.
    notes
        Facts to know before you rely on the prediction.
    """

    schema_version: Literal[1] = 1
    kind: Literal["throughput-prediction"] = "throughput-prediction"
    name: str
    steps_sha256: str
    unit: str
    options: PredictionOptions
    points: tuple[PredictedPoint, ...]
    curves: tuple[PredictedCurve, ...]
    replay_error: float | None
    trusted: Trusted
    notes: tuple[str, ...]

    def to_csv(self) -> str:
        """Return a row for each point."""
        columns = (
            "workers",
            "servers",
            "bandwidth_gbps",
            "throughput",
            "low",
            "high",
            "step_s",
            "bottleneck",
        )
        return to_csv(
            [
                {column: getattr(point, column) for column in columns}
                | {
                    "mean_staleness": point.mean_staleness,
                    "largest_utilization": max((link.utilization for link in point.links), default=0.0),
                    **point.coarse.model_dump(),
                    "extrapolated": point.extrapolated,
                }
                for point in self.points
            ]
        )
