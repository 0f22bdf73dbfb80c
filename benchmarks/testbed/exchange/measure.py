"""One setting: all contenders alive side by side, timed in turns; see ``benchmarks.testbed.measure``."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from benchmarks.testbed import trainer as ring_trainer
from benchmarks.testbed.contenders import BY_NAME
from benchmarks.testbed.errors import RankFailed
from benchmarks.testbed.exchange.contenders import (
    ExchangeContender,
    predict_exchange,
    schedule_of,
    traffic_of,
)
from benchmarks.testbed.exchange.layouts import Layout
from benchmarks.testbed.exchange.results import ExchangeSetting, UnmodifiedRun
from benchmarks.testbed.exchange.trainer import Exchanging, serve, work
from benchmarks.testbed.hosts import Host
from benchmarks.testbed.measure import ROUND_TIMEOUT_S, Effort, check_weights, plain_window_s, windows_of
from benchmarks.testbed.prediction import predict, schedule_for
from benchmarks.testbed.processes import Ranks, ranks
from benchmarks.testbed.reference import FloatArray, expected_weights
from benchmarks.testbed.replay import renamed
from benchmarks.testbed.results import ContenderResult
from benchmarks.testbed.scaling import Fitted
from benchmarks.testbed.trainer import Workload
from pace.allreduce.optimize import optimize_allreduce
from pace.documents.cluster import Cluster
from pace.documents.collective_costs import AllReduce
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.parameter_server.optimize import optimize_servers

_FIRST_PORT = 22000

Tell = Callable[[str], None]
Unmodified = Callable[[], Sequence[UnmodifiedRun]]


@dataclass(slots=True, kw_only=True)
class _Contest:
    """A contender on its way through a setting.

    Attributes
    ----------
    start
        Starts its processes: those of servers on hosts of their own, if there are any, and the workers'.
    """

    contender: ExchangeContender
    start: Callable[[ExitStack], tuple[Ranks | None, Ranks]]
    predicted_s: float
    bound_s: float
    servers: Ranks | None = None
    workers: Ranks | None = None
    rounds_s: list[list[float]] = field(default_factory=list)
    failed: str | None = None
    largest_error: float | None = None

    def ask(self, request: str, *arguments: Any) -> list[Any]:
        """Ask the workers, with the servers awake."""
        assert self.workers is not None
        with nullcontext() if self.servers is None else self.servers.awake():
            return self.workers.ask(request, *arguments, timeout_s=ROUND_TIMEOUT_S)

    def attempt(self, act: Callable[[], None]) -> None:
        """Do something unless it has failed; a failure is its own, not the setting's."""
        if self.failed is not None:
            return
        try:
            act()
        except RankFailed as error:
            self.failed = str(error).strip().splitlines()[-1]
            for group in (self.workers, self.servers):
                if group is not None:
                    group.kill()

    def result(self) -> ContenderResult:
        """Return what the record holds."""
        return ContenderResult(
            name=self.contender.name,
            label=self.contender.label,
            peer=self.contender.peer,
            rounds_s=self.rounds_s,
            predicted_s=self.predicted_s,
            bound_s=self.bound_s,
            largest_weight_error=self.largest_error,
            disqualified=self.failed,
        )


def measure_exchange(
    on: Sequence[Host],
    layout: Layout,
    model: str,
    ratio: float,
    fitted: Fitted,
    cluster: Cluster,
    ring_cost: AllReduce | None,
    contenders: Sequence[ExchangeContender],
    effort: Effort,
    tell: Tell,
    *,
    paced: bool,
    unmodified: Unmodified | None = None,
) -> ExchangeSetting:
    """Measure all contenders on one workload.

    Parameters
    ----------
    cluster
        As measured on these hosts: plans, predictions and bounds are made from it.
    ring_cost
        What an all-reduce costs between the workers' hosts; without it rings do not compete.
    unmodified
        Runs other systems on these hosts, once all contenders are stopped.
    """
    profile = renamed(fitted.profile)
    workload = Workload(profile=fitted.profile, size_factor=fitted.size_factor)
    pacing = layout.pacing(cluster.exchange) if paced else None
    workers, _ = layout.split(on)
    contests = []
    for number, contender in enumerate(contenders):
        port = _FIRST_PORT + number
        if contender.family != "ring":
            contests.append(
                _over_servers(on, layout, contender, profile, workload, cluster, pacing, port, effort)
            )
        elif ring_cost is not None:
            contests.append(_over_a_ring(workers, contender, profile, workload, ring_cost, port))
    load = os.getloadavg()[0]
    plain_s = plain_window_s(workers, workload)
    expected = expected_weights(
        fitted.profile, workers=layout.workers, iterations=effort.rounds * (effort.windows + 1)
    )
    with ExitStack() as stack:
        _run(stack, contests, effort, expected)
    for contest in contests:
        if contest.failed:
            tell(f"{contest.contender.name}: {contest.failed}")
    return ExchangeSetting(
        model=model,
        workers=layout.workers,
        ratio=ratio,
        compute_s=fitted.profile.timing.compute_s,
        plain_s=plain_s,
        gradients=len(fitted.profile.gradients),
        total_bytes=sum(gradient.size_bytes for gradient in fitted.profile.gradients),
        time_factor=fitted.time_factor,
        size_factor=fitted.size_factor,
        load=load,
        contenders=[contest.result() for contest in contests],
        layout=str(layout),
        pacing_bytes_per_s=pacing,
        unmodified=list(unmodified()) if unmodified is not None else [],
    )


def _run(stack: ExitStack, contests: Sequence[_Contest], effort: Effort, expected: FloatArray) -> None:
    def begin(contest: _Contest) -> None:
        contest.servers, contest.workers = contest.start(stack)
        contest.ask("join", contest.ask("serve")[0])
        contest.ask("train", effort.warmup)
        contest.ask("restart")

    def take_turn(contest: _Contest) -> None:
        contest.rounds_s.append(windows_of(contest.ask("train", effort.windows + 1)))

    def check(contest: _Contest) -> None:
        contest.largest_error = check_weights(contest.ask("check_weights", expected))

    for contest in contests:
        contest.attempt(lambda c=contest: begin(c))  # type: ignore[misc]  # bound at once
    for turn in range(effort.rounds):
        # Nobody is always first, nobody always follows the same other.
        at = turn % len(contests) if contests else 0
        for contest in [*contests[at:], *contests[:at]]:
            contest.attempt(lambda c=contest: take_turn(c))  # type: ignore[misc]  # bound at once
    for contest in contests:
        contest.attempt(lambda c=contest: check(c))  # type: ignore[misc]  # bound at once


def _over_servers(
    on: Sequence[Host],
    layout: Layout,
    contender: ExchangeContender,
    profile: Profile,
    workload: Workload,
    cluster: Cluster,
    pacing: float | None,
    port: int,
    effort: Effort,
) -> _Contest:
    traffic = traffic_of(contender, profile, cluster, workload.size_factor, paced=pacing is not None)
    exchanging = Exchanging(
        contender=contender,
        layout=layout,
        traffic=traffic,
        schedule=schedule_of(contender, profile, cluster, traffic),
        pacing_bytes_per_s=pacing,
        port=port,
    )
    workers, hosts = layout.split(on)

    def start(stack: ExitStack) -> tuple[Ranks | None, Ranks]:
        servers: Ranks | None = None
        if not layout.colocated:
            servers = stack.enter_context(
                ranks(f"{contender.name}, servers", hosts, serve, hosts, exchanging)
            )
        return servers, stack.enter_context(ranks(contender.name, workers, work, on, workload, exchanging))

    return _Contest(
        contender=contender,
        start=start,
        predicted_s=predict_exchange(profile, cluster, traffic, windows=effort.windows),
        bound_s=optimize_servers(profile, Options(cluster=cluster)).predicted.lower_bound_s,
    )


def _over_a_ring(
    on: Sequence[Host],
    contender: ExchangeContender,
    profile: Profile,
    workload: Workload,
    cost: AllReduce,
    port: int,
) -> _Contest:
    """Let one of the all-reduce testbed's contenders train on the workers' hosts."""
    known = BY_NAME[contender.name.removeprefix("ring-")]
    priced = profile.replace(allreduce=cost)
    schedule = schedule_for(known, priced, workload.size_factor)

    def start(stack: ExitStack) -> tuple[Ranks | None, Ranks]:
        arguments = (on, known, workload, schedule, port)
        return None, stack.enter_context(ranks(contender.name, on, ring_trainer.main, *arguments))

    return _Contest(
        contender=contender,
        start=start,
        predicted_s=predict(known, priced, workload.size_factor, schedule),
        bound_s=optimize_allreduce(priced).predicted.lower_bound_s,
    )
