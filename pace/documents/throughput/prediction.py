"""What ``pace predict`` is asked and what it answers; shared by Python, the command line and the service."""

import csv
import io
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pace.documents.base import Document
from pace.documents.profile import Seconds
from pace.documents.throughput.fleet import Fleet
from pace.documents.throughput.steps import (
    LinkDiscipline,
    ShareSpread,
    ShareSpreadBytes,
    refuse_size_without_spread,
)
from pace.errors import InvalidOptions

Count = Annotated[int, Field(ge=1, le=10_000)]


Trusted = Literal["simulation", "closed_network", "neither"]


class PredictionOptions(Document):
    """Which scales are predicted, and how carefully.

    Attributes
    ----------
    workers
        Numbers of workers.
    servers
        Numbers of servers; as recorded where empty. Others are an extrapolation: parameters are placed anew.
    bandwidth_gbps
        Rates of the links in Gb/s of payload; as recorded where empty.
    discipline, window_bytes, share_spread, share_spread_bytes
        The links, as in ``StepLink``; as recorded if left out. A given spread has its own size or none.
    fleet
        How workers differ from the recorded one.
    steps, skip, seeds
        Steps of each worker in one simulation, how many of them before measuring, and how many simulations.
    at_workers
        Workers that the caller has, for which advice is wanted; the knee if left out.
    advice
        Whether to find out what one more worker, one more server, a faster link and faster compute are worth.
    """

    refused_as = InvalidOptions

    workers: Annotated[tuple[Count, ...], Field(max_length=1000)] = (1, 2, 3, 4, 5, 6, 7, 8)
    servers: Annotated[tuple[Count, ...], Field(max_length=100)] = ()
    bandwidth_gbps: Annotated[
        tuple[Annotated[float, Field(gt=0, le=8e6, allow_inf_nan=False)], ...], Field(max_length=100)
    ] = ()
    discipline: LinkDiscipline | None = None
    window_bytes: Annotated[int, Field(gt=0, le=2**53)] | None = None
    share_spread: ShareSpread | None = None
    share_spread_bytes: ShareSpreadBytes | None = None
    fleet: Fleet = Fleet()
    steps: Annotated[int, Field(ge=2, le=1_000_000)] = 400
    skip: Annotated[int, Field(ge=0)] = 50
    seeds: Annotated[int, Field(ge=1, le=1000)] = 5
    at_workers: Count | None = None
    advice: bool = True

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


class LinkUse(Document):
    """One direction of one host's link, and the share of its rate that was in use."""

    host: Literal["server", "worker"]
    number: int
    direction: Literal["downlink", "uplink"]
    utilization: float


class StalenessShare(Document):
    """The share of updates that came after so many updates of others since their pull."""

    staleness: int
    share: float


class CoarseModels(Document):
    """Predictions of coarser models, in examples per second.

    Attributes
    ----------
    cynthia
        Zheng et al., ICPP 2019: compute that is stretched by the link's use, plus two transfers.
    closed_network
        Mean value analysis of a closed queueing network of links, fitted to one worker's step (after Lin et
        al., MASCOTS 2018).
    bound
        No more than so many workers alone, and no more than any link carries.
    """

    cynthia: float
    closed_network: float
    bound: float


class PredictedPoint(Document):
    """One combination of workers, servers and link.

    Attributes
    ----------
    throughput, low, high
        Examples per second: mean over seeds, and their 5th and 95th percentile.
    step_s
        Mean length of one worker's step, its wait at a barrier included.
    bottleneck
        The link in use at least 75 % of the time, if there is one, or else "workers".
    links
        Every link's use: servers' first.
    staleness
        Distribution over updates; empty where nothing is pushed.
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


class Improvement(Document):
    """What one change is worth: the relative change of throughput, its 5th and its 95th percentile."""

    change: Literal["one more worker", "one more server", "links twice as fast", "compute twice as fast"]
    throughput: float
    gain: float
    low: float
    high: float


class PredictedCurve(Document):
    """Throughput over workers, with one number of servers and one link.

    Attributes
    ----------
    knee_workers
        The most workers of which each added at least a quarter of what the first gives, dips left aside; None
        if that holds up to the largest number asked for.
    balance_workers
        Where the asymptotic bounds meet: one worker's step over the time that its bytes need on the busiest
        link. None where nothing is moved.
    at_workers
        The number of workers that improvements are for: the caller's, the knee, or the largest asked for.
    improvements
        What each change is worth there.
    dips
        Numbers of workers that run more than 5 % slower than more and fewer workers suggest: they wait for
        one another in lock-step.
    """

    servers: int
    bandwidth_gbps: float
    knee_workers: int | None
    balance_workers: float | None
    at_workers: int | None
    improvements: tuple[Improvement, ...]
    dips: tuple[int, ...]


class ThroughputPrediction(Document):
    """Predicted throughput, bottlenecks and staleness at every scale.

    Attributes
    ----------
    steps_sha256
        SHA-256 of the steps document.
    unit
        What throughput counts each second.
    replay_error
        Median relative error of the recorded steps, replayed one by one; None where the document has no
        starts.
    trusted
        "simulation"; "closed_network" where the replay is so far off that the coarser model is the better
        guess; "neither" where the link's rate is not what was recorded, which both models have from there.
    notes
        What to know before relying on it.
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
        text = io.StringIO()
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
        writer = csv.writer(text, lineterminator="\n")
        coarse = tuple(CoarseModels.model_fields)
        writer.writerow([*columns, "mean_staleness", "largest_utilization", *coarse, "extrapolated"])
        for point in self.points:
            largest = max((link.utilization for link in point.links), default=0.0)
            writer.writerow(
                [
                    *(getattr(point, column) for column in columns),
                    point.mean_staleness,
                    largest,
                    *(getattr(point.coarse, name) for name in coarse),
                    point.extrapolated,
                ]
            )
        return text.getvalue()
