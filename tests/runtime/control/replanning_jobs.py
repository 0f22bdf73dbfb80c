"""Lives of jobs that plan by themselves: each is trained on two real ranks and keeps a diary."""

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

import pace.runtime.control.replanner
from pace.client import Client
from pace.documents.schedule import Schedule
from pace.runtime.options import Replanning
from pace.runtime.transports.device import HostClock
from pace.runtime.transports.gloo import GlooTransport
from pace.runtime.transports.transport import After, Done
from tests.runtime.models import batches, build, weights
from tests.runtime.schedules import profile_of, sizes_of
from tests.runtime.training import OPTIMIZERS, Weights, backward, trainable, wrap

FAST_S, SLOW_S = 0.01, 0.2
WINDOW = 6
MOST_STEPS = 100_000
PATIENCE_S = 100.0

# Slow is at least 20 times as long as fast in the forward pass alone; a busy machine stays well below 5.
SETTINGS = Replanning(
    profile_iterations=2, drift_iterations=WINDOW, drift_ratio=5.0, stale_ratio=1e3, interval_s=0.0
)
NEVER_AGAIN = replace(SETTINGS, interval_s=3600.0)

# What an all-reduce takes on the logical clock, on which everything else takes 1.
TICKS = 1_000_000


@dataclass(kw_only=True)
class Diary:
    """What one rank saw of one job."""

    trained: Weights = field(default_factory=dict)
    steps: int = 0
    sources: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    drift: float | None = None
    profiles: int = 0
    has_schedule: bool = False
    events: Counter[str] = field(default_factory=Counter)
    consequences: list[str] = field(default_factory=list)
    profile_sha256: str = ""


class Job:
    """A wrapped training whose forward pass takes as long as it is told to, on top of its own work.

    Parameters
    ----------
    shunned
        The source of plans under which the forward pass is slow, so that a trial keeps another.
    """

    def __init__(
        self, rank: int, logs: list[Any], transport: str = "gloo", *, shunned: str = "", **options: Any
    ) -> None:
        self.logs = logs
        self.model = build("conv")
        self.pause_s = 0.0
        self._shunned = shunned
        self.model.register_forward_pre_hook(self._pause)
        self.optimizer = wrap(transport, OPTIMIZERS["sgd"](trainable(self.model)), self.model, **options)
        self.batch = batches("conv", 1, rank)[0]
        self.diary = Diary()
        self._note()

    def _pause(self, *_: Any) -> None:
        time.sleep(self.pause_s + SLOW_S * (self.optimizer._plan.source == self._shunned))

    def _note(self) -> None:
        for seen, now in (
            (self.diary.sources, self.optimizer._plan.source),
            (self.diary.states, self.replanner.state),
        ):
            if not seen or seen[-1] != now:
                seen.append(now)

    @property
    def replanner(self) -> Any:
        """What every rank knows without asking the others."""
        return self.optimizer._choice.replanner

    def train(self, steps: int, *, until: Any = lambda: False, clip: bool = False) -> None:
        """Take so many steps, or fewer."""
        start = time.monotonic()
        for _ in range(steps):
            if until():
                return
            assert time.monotonic() - start < PATIENCE_S, f"still {self.replanner.state}: {self.logs}"
            self.optimizer.zero_grad()
            backward(self.model(*self.batch))
            if clip:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1e3)
            self.optimizer.step()
            self.diary.steps += 1
            self._note()

    def slow_down(self) -> None:
        """Take far longer than at first, however slow a busy machine was then; alike on all ranks."""
        self.pause_s = max(SLOW_S, 10 * self.replanner.drift.reference.iteration_s)

    def adopted(self) -> bool:
        """Whether there is a schedule, whichever plan then turns out to be the fastest."""
        return self.diary.states[-1] == "watching"

    def close(self) -> Diary:
        """End the job and hand over its diary."""
        report = self.optimizer.report()
        assert report.replanning == self.diary.states[-1]
        self.diary.drift, self.diary.profiles = report.drift, report.profiles
        self.diary.has_schedule = report.has_schedule
        self.diary.trained = weights(self.model)
        self.optimizer.close()
        for entry in self.logs:
            self.diary.events[entry["event"]] += 1
            if entry["event"] == "pace.drift":
                self.diary.consequences.append(entry["consequence"])
            if entry["event"] == "pace.profile_submitted":
                self.diary.profile_sha256 = entry["profile_sha256"]
        return self.diary


def first_start(rank: int, url: str, logs: list[Any]) -> Diary:
    """The service knows nothing: profile, submit, adopt; later drift comes too soon to do anything."""
    job = Job(rank, logs, service=url, job="life", replanning=NEVER_AGAIN, mode="auto", shunned="plain")
    job.pause_s = FAST_S
    job.train(MOST_STEPS, until=lambda: job.adopted() and job.optimizer.report().drift is not None)
    job.slow_down()
    job.train(MOST_STEPS, until=lambda: job.replanner.drift.drifted)
    job.train(5)
    return job.close()


def that_keeps_plain(rank: int, url: str, logs: list[Any]) -> Diary:
    """The schedule is there at once, and slower than plain operation; then iterations become far longer."""
    job = Job(rank, logs, service=url, job="life", replanning=SETTINGS, mode="auto", shunned="schedule")
    job.train(MOST_STEPS, until=lambda: job.optimizer.report().trial_s)
    job.train(2 * WINDOW)
    job.pause_s = 10 * job.optimizer.report().iteration_s + FAST_S
    job.train(3 * WINDOW)
    return job.close()


def second_start(rank: int, url: str, logs: list[Any]) -> Diary:
    """The schedule is there at once; drift leads to one new profile and schedule."""
    job = Job(rank, logs, service=url, job="life", replanning=SETTINGS)
    job.pause_s = FAST_S
    job.train(MOST_STEPS, until=lambda: job.replanner.drift.reference is not None)
    job.slow_down()
    first = job.optimizer._plan
    job.train(MOST_STEPS, until=lambda: job.optimizer._plan is not first and job.adopted())
    # Slow is what is normal now.
    job.train(MOST_STEPS, until=lambda: job.replanner.drift.ratio is not None)
    job.train(5)
    return job.close()


def that_gets_its_schedule_soon(rank: int, url: str, logs: list[Any]) -> Diary:
    """Once the service has scheduled the profile, two more steps are enough to adopt it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace.runtime.control.replanner, "STEPS_BETWEEN", MOST_STEPS)
        job = Job(rank, logs, service=url, job="soon", replanning=NEVER_AGAIN)
        job.train(MOST_STEPS, until=lambda: job.replanner.state == "submitting")
        deadline = time.monotonic() + PATIENCE_S
        while rank == 0 and not job.replanner._late.poll():
            assert time.monotonic() < deadline, "the service gave no schedule"
            time.sleep(0.01)
        job.train(2)
        return job.close()


def with_a_schedule_given(rank: int, schedule: Schedule, logs: list[Any]) -> Diary:
    """It is not replaced, whatever happens."""
    job = Job(rank, logs, schedule=schedule, replanning=SETTINGS)
    job.pause_s = FAST_S
    job.train(MOST_STEPS, until=lambda: job.replanner.drift.reference is not None)
    job.slow_down()
    job.train(MOST_STEPS, until=lambda: job.replanner.drift.drifted)
    job.train(5)
    return job.close()


def whose_name_another_job_has(rank: int, url: str, logs: list[Any]) -> Diary:
    """While it profiles itself, a job of the same name and model gets a schedule."""
    job = Job(rank, logs, service=url, job="twins", replanning=NEVER_AGAIN)
    if rank == 0:
        with Client(url, timeout_s=PATIENCE_S) as client:
            client.create_schedule(profile_of(sizes_of(job.model), 2), job="twins")
    job.train(MOST_STEPS, until=job.adopted)
    return job.close()


@contextlib.contextmanager
def _logical_time(tick: int) -> Iterator[None]:
    """Let sending take very long and everything else a tick, whatever the machine does."""
    ticks = 0

    def now(_clock: HostClock) -> int:
        nonlocal ticks
        ticks += tick
        return ticks

    def seconds(_clock: HostClock, stamps: Sequence[int]) -> list[float]:
        return [float(stamp - stamps[0]) for stamp in stamps]

    send = GlooTransport.allreduce

    def send_slowly(
        transport: GlooTransport, segment: torch.Tensor, name: str, done: Done, after: After | None = None
    ) -> Any:
        nonlocal ticks
        ticks += TICKS
        return send(transport, segment, name, done, after)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostClock, "now", now)
        patch.setattr(HostClock, "seconds", seconds)
        patch.setattr(GlooTransport, "allreduce", send_slowly)
        yield


def by_logical_time(rank: int, url: str, logs: list[Any]) -> Diary:
    """The loop reads gradients before its step, so that they are reduced early; rank 1 is slower."""
    with _logical_time(tick=1 + rank):
        job = Job(rank, logs, service=url, job="ticks", replanning=NEVER_AGAIN)
        job.train(MOST_STEPS, until=job.adopted, clip=True)
        return job.close()


def whose_service_dies(rank: int, url: str, pid: int, logs: list[Any]) -> Diary:
    """The service is killed while the job profiles itself."""
    job = Job(rank, logs, service=url, job="orphan", replanning=NEVER_AGAIN)
    assert job.replanner.state == "profiling"
    if rank == 0:
        os.kill(pid, signal.SIGKILL)
    job.train(60)
    return job.close()


def unlike_itself(rank: int, url: str, logs: list[Any]) -> Diary:
    """No two iterations do the same, so no profile can be made of them."""
    job = Job(rank, logs, service=url, job="unlike", replanning=NEVER_AGAIN)
    for number in range(40):
        with torch.no_grad():
            for _ in range(number % 7):
                job.model(*job.batch)
        job.train(1)
    return job.close()
