"""A job with an empty service profiles itself, follows the schedule it gets, and replans when it drifts.

One start of two real ranks with a real service goes through the lives of several jobs.
"""

import json
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import pace.runtime.control.plan_source
import pace.runtime.control.replanner
from pace.documents.profile import Profile, parse_profile
from pace.documents.schedule import Schedule
from pace.errors import CommunicationFailed
from pace.runtime.capture.recorder import num_steps
from pace.runtime.capture.self_profile import RECORDED_PER_PLAIN, WARM_UP, SelfProfile
from pace.runtime.profiler import Capture
from tests.api.process import ServiceProcess
from tests.runtime.control.replanning_jobs import (
    MOST_STEPS,
    NEVER_AGAIN,
    PATIENCE_S,
    SETTINGS,
    Diary,
    Job,
    by_logical_time,
    first_start,
    second_start,
    that_gets_its_schedule_soon,
    that_keeps_plain,
    unlike_itself,
    whose_name_another_job_has,
    whose_service_dies,
    with_a_schedule_given,
)
from tests.runtime.launch import run_ranks, try_ranks
from tests.runtime.logs import captured_events
from tests.runtime.models import batches, build
from tests.runtime.schedules import shuffled_schedule
from tests.runtime.training import (
    OPTIMIZERS,
    Case,
    backward,
    difference,
    equal_bits,
    train_plainly,
    trainable,
)

pytestmark = pytest.mark.races_with_machine(
    reason="drift is measured on real iterations, which a busy machine slows down", fixtures=["lives"]
)


def _live(rank: int, _size: int, url: str, pid: int, schedule: Schedule) -> dict[str, Diary]:
    pace.runtime.control.replanner.STEPS_BETWEEN = 4
    pace.runtime.control.plan_source._START_TIMEOUT_S = PATIENCE_S
    lives: dict[str, Any] = {
        "first": lambda logs: first_start(rank, url, logs),
        "plain": lambda logs: that_keeps_plain(rank, url, logs),
        "second": lambda logs: second_start(rank, url, logs),
        "soon": lambda logs: that_gets_its_schedule_soon(rank, url, logs),
        "given": lambda logs: with_a_schedule_given(rank, schedule, logs),
        "ticks": lambda logs: by_logical_time(rank, url, logs),
        "unlike": lambda logs: unlike_itself(rank, url, logs),
        "twins": lambda logs: whose_name_another_job_has(rank, url, logs),
        "orphan": lambda logs: whose_service_dies(rank, url, pid, logs),
    }
    found = {}
    for name, life in lives.items():
        with captured_events() as logs:
            found[name] = life(logs)
    return found


@dataclass(frozen=True, kw_only=True)
class Lives:
    """Both ranks' diaries, and the profiles that the service holds."""

    ranks: list[dict[str, Diary]]
    profiles: dict[str, Profile]

    def __getitem__(self, name: str) -> Diary:
        return self.ranks[0][name]


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Lives:
    """All jobs, one after the other in the same processes; the last one ends the service."""
    schedule = shuffled_schedule(build("conv"), 2, seed=5)
    folder = tmp_path_factory.mktemp("service")
    with ServiceProcess(folder) as service:
        ranks = run_ranks(_live, 2, service.url, service.pid, schedule, timeout_s=280)
        service.wait()
        service.start()  # on the same database
        shas = {diary.profile_sha256 for diary in ranks[0].values() if diary.profile_sha256}
        profiles = {sha: service.http.get(f"/v1/profiles/{sha}").json()["profile"] for sha in shas}
    return Lives(
        ranks=ranks, profiles={sha: parse_profile(json.dumps(found)) for sha, found in profiles.items()}
    )


def test_weights_are_those_of_plain_training(lives: Lives) -> None:
    """Through every change of plan: the ranks' to the bit, plain training's to the order of addition."""
    for name, diary in lives.ranks[0].items():
        assert equal_bits(diary.trained, lives.ranks[1][name].trained), name
        assert diary.steps == lives.ranks[1][name].steps, name
        assert difference(diary.trained, train_plainly(Case(steps=diary.steps), 2, repeat=True)) <= 1e-3, name


def test_a_job_without_a_schedule_profiles_itself_and_adopts_what_it_gets(lives: Lives) -> None:
    """Plainly while it records, then by the schedule; one profile, handed in once."""
    first = lives["first"]
    assert first.sources[0] == "plain"
    assert first.states == ["profiling", "submitting", "watching"]
    assert first.events["pace.profiling"] == first.events["pace.profile_submitted"] == 1
    assert first.events["pace.measuring_network"] == first.events["pace.schedule_adopted"] == 1
    assert first.profiles == 1


def test_drift_within_the_interval_is_said_and_not_acted_upon(lives: Lives) -> None:
    """Slowed down for real right after adopting: logged once, seen in the report, no second profile."""
    first = lives["first"]
    (consequence,) = first.consequences
    assert re.fullmatch(r"a new profile in \d+ s", consequence)
    assert first.drift is not None
    assert first.drift > SETTINGS.drift_ratio
    assert first.profiles == 1


def test_a_job_that_chose_plain_operation_is_not_profiled_when_it_drifts(lives: Lives) -> None:
    """No schedule is in force that a profile could replace; nothing is logged either."""
    plain = lives["plain"]
    assert plain.sources[-1] == "plain"
    assert plain.states == ["watching", "none"]
    assert plain.events["pace.mode_chosen"] == 1
    assert plain.events["pace.profiling"] == plain.events["pace.drift"] == plain.profiles == 0
    assert plain.drift is None
    assert plain.has_schedule  # found, and slower


def test_the_second_start_finds_the_schedule_and_replans_when_it_drifts(lives: Lives) -> None:
    """No profile at the start; one after the drift, and then none, since slow has become normal."""
    second = lives["second"]
    assert second.sources == ["schedule", "plain", "schedule"]
    assert second.states == ["watching", "profiling", "submitting", "watching"]
    assert second.consequences == ["a new profile"]
    assert second.events["pace.profiling"] == second.events["pace.profile_submitted"] == 1
    assert second.events["pace.schedule_adopted"] == 1
    assert second.profiles == 1
    assert second.profile_sha256 not in ("", lives["first"].profile_sha256)


def test_a_schedule_is_adopted_soon_after_the_profile_was_handed_in(lives: Lives) -> None:
    """Ranks look for it every other step, however rarely they look at other times."""
    soon = lives["soon"]
    assert soon.states == ["profiling", "submitting", "watching"]
    assert soon.steps == num_steps(iterations=2, warmup=WARM_UP, recorded_per_plain=RECORDED_PER_PLAIN) + 2


def test_a_schedule_that_was_given_is_never_replaced(lives: Lives) -> None:
    """Drift is logged once and seen in the report."""
    given = lives["given"]
    assert given.sources == ["schedule"]
    assert given.states == ["watching"]
    assert given.consequences == ["none: the schedule was given"]
    assert given.events["pace.profiling"] == given.profiles == 0
    assert given.drift is not None
    assert given.drift > SETTINGS.drift_ratio


def test_two_jobs_of_one_name_are_told_of(lives: Lives) -> None:
    """The later one follows the schedule of the other's profile, and says what to do."""
    twin = lives["twins"]
    assert twin.states == ["profiling", "submitting", "watching"]
    assert twin.events["pace.profile_submitted"] == 0
    assert twin.events["pace.job_name_shared"] == 1
    others = [diary for name, diary in lives.ranks[0].items() if name != "twins"]
    assert not any(other.events["pace.job_name_shared"] for other in others)


def test_communication_is_in_no_op(lives: Lives) -> None:
    """Where sending takes a million ticks and everything else two, no op takes a hundred."""
    profile = lives.profiles[lives["ticks"].profile_sha256]
    assert 0 < max(op.duration_s for op in profile.ops) < 100
    assert profile.metadata["plain_iteration_s"] < 100


def test_the_rank_that_computes_longest_is_profiled(lives: Lives) -> None:
    """Its gradients are what all others wait for."""
    assert lives.profiles[lives["ticks"].profile_sha256].metadata["rank"] == 1


def test_the_profile_is_that_of_a_capture(lives: Lives) -> None:
    """Same ops, producers and consumers as of the same loop without the runtime; the network is measured."""
    model = build("conv")
    optimizer = OPTIMIZERS["sgd"](trainable(model))
    batch = batches("conv", 1, 1)[0]
    with Capture(model, optimizer, iterations=1, warmup=1) as capture:
        while not capture.finished:
            optimizer.zero_grad()
            backward(model(*batch))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e3)
            optimizer.step()
            capture.step()
    own = lives.profiles[lives["ticks"].profile_sha256]
    outside = capture.profile("x", workers=2, allreduce=own.allreduce)
    assert [(op.name, op.deps, op.waits_for) for op in own.ops] == [
        (op.name, op.deps, op.waits_for) for op in outside.ops
    ]
    assert own.gradients == outside.gradients
    assert own.allreduce.kind == "samples"
    assert len(own.allreduce.samples) >= 6
    assert own.name == "ticks"


def test_iterations_that_are_not_alike_give_no_profile(lives: Lives) -> None:
    """After three attempts the job goes on without, and still asks for a schedule."""
    unlike = lives["unlike"]
    assert unlike.states[-1] == "asking"
    assert unlike.sources[-1] == "local"
    assert unlike.profiles == 0
    assert not unlike.has_schedule
    assert unlike.events["pace.profile_failed"] == unlike.events["pace.profiling"] == 3


def test_a_service_that_dies_meanwhile_stops_nobody(lives: Lives) -> None:
    """Training went on, by the plan computed here, with the profile kept to be handed in."""
    orphan = lives["orphan"]
    assert orphan.steps == 60
    assert orphan.states == ["profiling", "submitting"]
    assert orphan.sources == ["plain", "local"]
    assert orphan.events["pace.schedule_adopted"] == 0


def _left_alone(rank: int, _size: int, url: str) -> tuple[str, int, bool]:
    pace.runtime.control.plan_source._START_TIMEOUT_S = PATIENCE_S
    before = torch.autograd.backward
    job = Job(rank, [], service=url, job="left alone", replanning=NEVER_AGAIN)
    if rank == 1:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SelfProfile, "finish", lambda _profile: os.kill(os.getpid(), signal.SIGKILL))
            job.train(60)
    with pytest.raises(CommunicationFailed) as raised:
        job.train(60)
    job.optimizer.close()
    hooks = sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in job.model.modules())
    return str(raised.value), hooks, torch.autograd.backward is before


def test_a_peer_lost_while_profiling_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Killed before the network is measured: no hang, and hooks are off again but for the test's own."""
    with ServiceProcess(tmp_path) as service:
        survivor, lost = try_ranks(_left_alone, 2, service.url, timeout_s=200, expect_lost=[1])
    assert survivor.returned, survivor.output
    message, hooks, restored = survivor.result
    assert "rank 1 gives no sign of life" in message
    assert hooks == 1
    assert restored
    assert lost.exit_code == -signal.SIGKILL


def _over_horovod(rank: int, _size: int, url: str) -> Diary:
    pace.runtime.control.replanner.STEPS_BETWEEN = 4
    pace.runtime.control.plan_source._START_TIMEOUT_S = PATIENCE_S
    with captured_events() as logs:
        job = Job(rank, logs, "horovod", service=url, job="horovod", replanning=NEVER_AGAIN)
        job.train(MOST_STEPS, until=job.adopted)
        job.train(10)
        return job.close()


@pytest.mark.horovod
def test_over_horovod(tmp_path: Path) -> None:
    """The same over the other transport: profiled, scheduled, adopted; same bits on both ranks."""
    pytest.importorskip("horovod")
    with ServiceProcess(tmp_path) as service:
        first, second = run_ranks(_over_horovod, 2, service.url, backend="horovod", timeout_s=200)
    assert first.states == second.states == ["profiling", "submitting", "watching"]
    assert first.sources[-1] == "schedule"
    assert first.events["pace.profile_submitted"] == 1
    assert equal_bits(first.trained, second.trained)
    assert difference(first.trained, train_plainly(Case(steps=first.steps), 2, repeat=True)) <= 1e-3
