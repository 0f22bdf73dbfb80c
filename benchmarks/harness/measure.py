"""One setting: all contenders alive side by side, timed in turns, so that drift hits all alike."""

import math
import os
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness.contenders import Contender
from benchmarks.harness.contest import Contest
from benchmarks.harness.network.processes import Ranks, ranks
from benchmarks.harness.prediction import predict, schedule_for
from benchmarks.harness.prerequisites import RankFailed
from benchmarks.harness.results import ContenderResult, MeasuredWindows, SettingResult, windows_of
from benchmarks.harness.training import trainer
from benchmarks.harness.workload.replay import TOLERANCE, FloatArray
from benchmarks.harness.workload.scaling import with_compute
from benchmarks.harness.workload.two_wires import TwoWireBounds, as_record
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.kinds import optimize
from pace.planning.lower_bound import lower_bound_s

_FIRST_PORT = 20000
ROUND_TIMEOUT_S = 300.0

# Windows for each bucket size that is tried.
_SWEEP_WINDOWS = 2
_PLAIN = Contender(name="plain", label="no communication", kind="plain", color="")

Tell = Callable[[str], None]
Timed = Callable[[Profile], Profile]
"""Gives a profile the durations of this machine while contenders took turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Numbers of iterations and repetitions of a measurement.

    Attributes
    ----------
    rounds, windows
        Each contender has its turn `rounds` times and is timed over so many windows each time.
    warmup
        Iterations before anything counts: DDP arranges its buckets, Horovod its cache, PACE its gates.
    bucket_sizes_mib
        What DDP's sweep tries.
    """

    rounds: int = 3
    windows: int = 3
    warmup: int = 2
    bucket_sizes_mib: tuple[float, ...] = ()


@dataclass(slots=True, kw_only=True)
class Entry:
    """A contender on its way through a setting.

    Attributes
    ----------
    job
        What its ranks run.
    predict
        Returns the predicted window in seconds, given the bucket size that DDP's sweep chose.
    bound
        Returns the bound in seconds.
    servers, workers
        Its processes: those of servers on hosts of their own, if there are any, and the workers'.
    """

    job: trainer.Job
    predict: Callable[[Timed, float | None], float] = lambda _timed, _mib: math.nan
    bound: Callable[[Timed], float] = lambda _timed: math.nan
    servers: Ranks | None = None
    workers: Ranks | None = None
    rounds_s: list[list[float]] = field(default_factory=list)
    failed: str | None = None
    largest_error: float | None = None
    bucket_mib: float | None = None
    sweep_s: dict[str, float] | None = None

    @property
    def contender(self) -> Contender:
        """Who it is."""
        return self.job.contender

    def start(self, stack: ExitStack, effort: Effort) -> None:
        """Start the processes and train until everything is warm."""
        job, name = self.job, self.contender.name
        undisturbed = job.workload.real is None
        workers, hosts = job.layout.split(job.on)
        if hosts and not job.layout.colocated and self.contender.backend == "servers":
            from benchmarks.harness.training import over_servers

            self.servers = stack.enter_context(
                ranks(f"{name}, servers", hosts, over_servers.serve, hosts, job)
            )
        environment = self.contender.environment
        self.workers = stack.enter_context(
            ranks(name, workers, trainer.main, job, environment=environment, undisturbed=undisturbed)
        )
        self.ask("join", self.ask("serve")[0])
        if self.contender.kind == "ddp-sweep":
            self._sweep(effort)
        if self.contender.tuning_iterations:
            self.ask("train", self.contender.tuning_iterations)
        self.ask("train", effort.warmup)
        self.ask("restart")

    def ask(self, request: str, *arguments: Any) -> list[Any]:
        """Ask the workers, with the servers awake."""
        assert self.workers is not None
        with nullcontext() if self.servers is None else self.servers.awake():
            return self.workers.ask(request, *arguments, timeout_s=ROUND_TIMEOUT_S)

    def _sweep(self, effort: Effort) -> None:
        """Time DDP with every bucket size, and use the best."""
        took = {}
        for mib in effort.bucket_sizes_mib:
            self.ask("use_bucket_size", mib)
            self.ask("train", 2)
            took[mib] = statistics.median(windows_of(self.ask("train", _SWEEP_WINDOWS + 1)))
        self.bucket_mib = min(took, key=took.__getitem__)
        self.sweep_s = {f"{mib:g}": seconds for mib, seconds in took.items()}
        self.ask("use_bucket_size", self.bucket_mib)

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

    def take_turn(self, effort: Effort) -> None:
        """Be timed for a round."""
        self.rounds_s.append(windows_of(self.ask("train", effort.windows + 1)))

    def check(self, expected: FloatArray) -> None:
        """Compare the weights with what they should be by now."""
        self.largest_error = check_weights(self.ask("check_weights", expected))

    def result(self, timed: Timed) -> ContenderResult:
        """Return what the record holds."""
        return ContenderResult(
            name=self.contender.name,
            label=self.contender.label,
            peer=self.contender.peer,
            rounds_s=self.rounds_s,
            predicted_s=self.predict(timed, self.bucket_mib),
            bound_s=self.bound(timed),
            largest_weight_error=self.largest_error,
            disqualified=self.failed,
            bucket_mib=self.bucket_mib,
            sweep_s=self.sweep_s,
        )


def measure(
    contest: Contest,
    contenders: Sequence[Contender],
    effort: Effort,
    tell: Tell,
    *,
    unmodified: Callable[[], Sequence[MeasuredWindows]] | None = None,
) -> SettingResult:
    """Measure all contenders on one workload.

    Parameters
    ----------
    unmodified
        Runs other systems on these hosts, once all contenders are stopped.
    """
    fitted, workload = contest.fitted, contest.workload
    two_wires = contest.two_wire_bounds()
    entries = [
        _over_servers(contest, each, _FIRST_PORT + number, effort)
        if each.backend == "servers"
        else _over_allreduce(contest, each, _FIRST_PORT + number, two_wires)
        for number, each in enumerate(contenders)
    ]
    load = os.getloadavg()[0]
    plain = Entry(
        job=trainer.Job(
            on=contest.on,
            layout=contest.layout,
            contender=_PLAIN,
            workload=workload,
            port=_FIRST_PORT + len(contenders),
        )
    )
    expected = contest.expected(effort.rounds * (effort.windows + 1))
    with ExitStack() as stack:
        everyone = [plain, *entries]
        for entry in everyone:
            entry.attempt(lambda e=entry: e.start(stack, effort))  # type: ignore[misc]  # bound at once
        for turn in range(effort.rounds):
            # Nobody is always first, nobody always follows the same other.
            first = turn % len(everyone)
            for entry in (*everyone[first:], *everyone[:first]):
                entry.attempt(lambda e=entry: e.take_turn(effort))  # type: ignore[misc]
        for entry in entries:
            entry.attempt(lambda e=entry: e.check(expected))  # type: ignore[misc]
    for entry in everyone:
        if entry.failed:
            tell(f"{entry.contender.name}: {entry.failed}")
    if plain.failed:
        raise RankFailed(f"training without communication failed: {plain.failed}")
    plain_s = statistics.median(window for windows in plain.rounds_s for window in windows)

    def timed(profile: Profile) -> Profile:
        # The machine may have been faster or slower when real compute was captured.
        return profile if workload.real is None else with_compute(profile, plain_s)

    return SettingResult(
        model=contest.model,
        layout=str(contest.layout),
        ratio=contest.ratio,
        compute_s=fitted.profile.timing.compute_s,
        plain_s=plain_s,
        gradients=len(fitted.profile.gradients),
        total_bytes=sum(gradient.size_bytes for gradient in fitted.profile.gradients),
        time_factor=fitted.time_factor,
        size_factor=fitted.size_factor,
        load=load,
        contention={backend: asdict(each) for backend, each in fitted.contention.items()},
        contenders=[entry.result(timed) for entry in entries],
        max_norm=workload.max_norm,
        pacing_bytes_per_s=contest.pacing_bytes_per_s,
        two_wires=as_record(two_wires, contest.inner) if two_wires and contest.inner else None,
        unmodified=list(unmodified()) if unmodified is not None else [],
    )


def _over_allreduce(
    contest: Contest, contender: Contender, port: int, two_wires: TwoWireBounds | None
) -> Entry:
    fitted = contest.fitted
    profile = contest.named(contest.priced(contender.backend))
    schedule = schedule_for(contender, profile, fitted.size_factor)
    predicted = profile
    if contender.predicted_at is not None:
        predicted = profile.replace(allreduce=contest.costs.allreduce[contender.predicted_at])
    bounded = contest.priced(contender.backend)
    return Entry(
        job=trainer.Job(
            on=contest.on,
            layout=contest.layout,
            contender=contender,
            workload=contest.workload,
            schedule=schedule,
            port=port,
        ),
        predict=lambda timed, mib: predict(contender, timed(predicted), fitted.size_factor, schedule, mib),
        bound=lambda timed: lower_bound_s(timed(bounded)) if two_wires is None else two_wires.joint_s,
    )


def _over_servers(contest: Contest, contender: Contender, port: int, effort: Effort) -> Entry:
    from benchmarks.harness.server_plans import predict_over_servers, schedule_over_servers, traffic_of

    cluster, pacing = contest.costs.cluster, contest.pacing_bytes_per_s
    assert cluster is not None
    profile = contest.named(contest.fitted.profile)
    traffic = traffic_of(contender, profile, cluster, contest.fitted.size_factor, paced=pacing is not None)
    return Entry(
        job=trainer.Job(
            on=contest.on,
            layout=contest.layout,
            contender=contender,
            workload=contest.workload,
            schedule=schedule_over_servers(contender, profile, cluster, traffic),
            port=port,
            rules=traffic.rules,
            pacing_bytes_per_s=pacing,
        ),
        predict=lambda _timed, _mib: predict_over_servers(profile, cluster, traffic, windows=effort.windows),
        bound=lambda _timed: optimize(profile, Options(cluster=cluster)).predicted.lower_bound_s,
    )


def check_weights(checks: Sequence[trainer.WeightCheck]) -> float:
    """Return how far the farthest weight of any rank is off.

    Raises
    ------
    RankFailed
        When it is too far, or weights differ between ranks.
    """
    largest = max(check.largest_error for check in checks)
    if len({check.sha256 for check in checks}) > 1:
        raise RankFailed("weights differ between ranks")
    if not largest <= TOLERANCE:
        raise RankFailed(f"weights are off by {largest:.2g}")
    return largest
