"""The scenario document: a whole training run over a fabric, to be simulated under several policies."""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pace.documents.base import Document
from pace.documents.profile import Name
from pace.errors import InvalidOptions
from pace.simulation.knobs import SomeBytes
from pace_fabric.documents.transfer_plan import LatePolicy

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MOST_WORKERS = 10_000
MOST_TICKS = 10_000_000
MOST_RATES = 1_000_000
# Links have rates for a little longer than a run: its last transfers may still be under way.
MARGIN_S = 60.0
# Most estimated time of a run here; it takes about a fifth of this, as links slow workers down.
MOST_WORK_S = 3600.0
Count = Annotated[int, Field(ge=1, le=10_000)]


class Straggling(Document):
    """With a probability of `percent` %, a computation takes `slowdown` times as long."""

    percent: Annotated[float, Field(ge=0, le=100)] = 0.0
    slowdown: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0


class RedrawnRates(Document):
    """Every `every_s` seconds, each direction of a link gets a rate of `bytes_per_s`, drawn by `shares`."""

    bytes_per_s: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1.25e9,)
    shares: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1)] = (1.0,)
    every_s: Positive = 5.0

    @model_validator(mode="after")
    def _one_share_each(self) -> Self:
        if len(self.shares) != len(self.bytes_per_s) or abs(sum(self.shares) - 1) > 1e-9:
            raise ValueError("there must be one share for each rate, and they must add up to 1")
        return self


class FabricScenario(Document):
    """Workers on machines, a server on a machine of its own, and how they train.

    Attributes
    ----------
    sum_hosts
        Whether the updates of a machine's workers are summed before they are sent, as one update.
    compute_s
        Duration of one computation without straggling, in seconds.
    server_bytes_per_s
        Rate of the server's link in bytes/s, each way. It changes like others only with `server_varies`.
    delay_bound
        Bound on delays in versions, for policies that have one. Each worker's update is one version.
    aggregators
        Number of hosts that may add and distribute updates; null for all.
    tick_s, lag_s
        Time between plans, and age of the rates that a plan uses, in seconds.
    batching
        "just-in-time": plan when the server's link is booked for less than a tick. "every-tick": plan in
        every tick.
    pull
        When a worker asks for a newer model: after its update is committed or dropped, or at once.
    replicate_updates, replicate_patiently
        Largest number of updates by which the server may lead a replica (null: no replica), and whether it
        waits for half of that before it receives anything, so that sums are larger.
    staleness, buffer, quorum, grace_s
        Settings of the policies ssp, fedbuff and quorum.
    flows
        Number of a machine's workers that use its link at once in a collective.
    """

    schema_version: Literal[1] = 1
    name: Name = "scenario"
    machines: Count = 15
    workers_per_machine: Count = 2
    sum_hosts: bool = False
    update_bytes: SomeBytes = 100_000_000
    compute_s: Positive = 0.1
    straggling: Straggling = Straggling()
    links: RedrawnRates = RedrawnRates()
    server_bytes_per_s: Positive = 1.25e9
    server_varies: bool = False
    delay_bound: Annotated[int, Field(ge=1, lt=2**53)] = 30
    late: LatePolicy = "drop"
    aggregators: Annotated[int, Field(ge=0)] | None = None
    tick_s: Positive = 0.1
    lag_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.2
    batching: Literal["just-in-time", "every-tick"] = "just-in-time"
    pull: Literal["after-commit", "at-once"] = "after-commit"
    flows: Count = 2
    replicate_updates: Annotated[int, Field(ge=0)] | None = None
    replicate_patiently: bool = False
    staleness: Annotated[int, Field(ge=0)] = 3
    buffer: Count = 10
    quorum: Count = 20
    grace_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.05
    duration_s: Annotated[float, Field(gt=0, le=100_000)] = 30.0
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0

    @model_validator(mode="after")
    def _can_be_simulated(self) -> Self:
        rates = (self.machines + 2) * (self.duration_s + MARGIN_S) / self.links.every_s
        for name, count, most in (
            ("machines * workers_per_machine", self.num_workers, MOST_WORKERS),
            ("duration_s / tick_s", self.duration_s / self.tick_s, MOST_TICKS),
            ("(machines + 2) * (duration_s + 60) / links.every_s", rates, MOST_RATES),
        ):
            if count > most:
                raise ValueError(f"{name} is {count:g}, at most {most:,} are simulated")
        return self

    @model_validator(mode="after")
    def _patience_needs_a_replica(self) -> Self:
        if self.replicate_patiently and self.replicate_updates is None:
            raise ValueError("replicate_patiently needs replicate_updates: give it, or leave both out")
        return self

    def work_s(self, policy: str) -> float:
        """Return about how many seconds it takes at most to simulate a policy.

        A worker computes, and then sends an update or a part of it over its link. Policies with a server
        share links among all transfers anew at each event. Plans also take time in each tick.
        """
        turn_s = self.compute_s + self.update_bytes / max(self.links.bytes_per_s)
        computations = self.num_workers * (1 + self.duration_s / turn_s)
        if policy in ("ring", "tree"):
            return 5e-6 * computations
        if not policy.startswith("mlfabric"):
            return (3e-5 + 5e-8 * self.num_workers) * computations
        ticks = self.duration_s / self.tick_s
        return (4e-4 + 1e-6 * self.num_workers) * computations + (3e-4 + 1e-5 * self.machines) * ticks

    def refuse_long(self, policies: Sequence[str], most_s: float = MOST_WORK_S) -> None:
        """Raise InvalidOptions if simulating policies might take more than so many seconds."""
        work_s = sum(self.work_s(policy) for policy in policies)
        if work_s > most_s:
            raise InvalidOptions(
                f"duration_s is {self.duration_s:g}: simulating {', '.join(policies)} with "
                f"{self.num_workers:,} workers may take {work_s:.0f} s, at most {most_s:.0f} s are "
                "allowed. Choose a shorter duration_s, a longer compute_s or tick_s, or fewer workers"
            )

    @property
    def sha256(self) -> str:
        """SHA-256 of the document in its canonical form."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return self.machines * self.workers_per_machine
