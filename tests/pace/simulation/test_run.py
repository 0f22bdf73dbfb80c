"""Windows: the same every time, no longer on a better network, jittered as asked; the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from pace import InvalidOptions, Profile, optimize
from pace.cli import app
from pace.documents.collective_costs import AffineAllReduce
from pace.models import build
from pace.simulation import POLICIES, make_policy, run_policy
from tests.strategies import affine, eighths, layered, profiles, properties

PROFILE = build("vgg16", device_tflops=8.0, batch=64, workers=8)


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_seed_gives_the_same_windows(name: str) -> None:
    """And another seed others; without jitter every window is the same."""
    policy = make_policy(name)
    one, two, other = (
        run_policy(PROFILE, policy, iterations=3, jitter=0.1, seed=seed).iterations_s for seed in (5, 5, 6)
    )
    assert one.tolist() == two.tolist()
    assert len(set(one.tolist())) == 3
    assert not set(one.tolist()) & set(other.tolist())
    still = run_policy(PROFILE, policy, iterations=3)
    assert set(still.iterations_s.tolist()) == {run_policy(PROFILE, policy).iteration_s}


def test_policies_are_compared_on_the_same_durations() -> None:
    """One seed, the same ops, whatever the policy draws."""
    drawn = [
        [
            window.durations_s.tolist()
            for window in run_policy(PROFILE, make_policy(name), iterations=2, jitter=0.2).windows
        ]
        for name in ("fifo", "horovod", "pace")
    ]
    assert drawn[0] == drawn[1] == drawn[2]


def test_jitter_has_the_spread_that_was_asked_for() -> None:
    """Lognormal with the profile's means; a measured spread counts more than the option."""
    measured = tuple(
        op.model_copy(update={"duration_std_s": 0.5 * op.duration_s}) if number == 0 else op
        for number, op in enumerate(PROFILE.ops)
    )
    profile = PROFILE.replace(ops=measured)
    run = run_policy(profile, make_policy("fifo"), iterations=4000, jitter=0.1, seed=1)
    ratios = np.array([window.durations_s for window in run.windows]) / profile.graph.durations_s.clip(1e-12)
    timed = np.flatnonzero(profile.graph.durations_s)
    assert ratios[:, timed].mean() == pytest.approx(1.0, abs=0.01)
    assert ratios[:, 0].std() == pytest.approx(0.5, rel=0.1)
    assert ratios[:, timed[1]].std() == pytest.approx(0.1, rel=0.1)


@properties(50)
@given(
    profile=profiles(cost=st.builds(AffineAllReduce, latency_s=eighths(1), seconds_per_byte=eighths(1))),
    latency=eighths(1),
    slope=eighths(1),
    name=st.sampled_from(["fifo", "ddp"]),
)
def test_a_slower_network_makes_no_window_shorter(
    profile: Profile, latency: float, slope: float, name: str
) -> None:
    """Where the order is fixed by the model, and for the ideal of an exact schedule's bound."""
    assert isinstance(profile.allreduce, AffineAllReduce)
    slower = profile.replace(
        allreduce=AffineAllReduce(
            latency_s=profile.allreduce.latency_s + latency,
            seconds_per_byte=profile.allreduce.seconds_per_byte + slope,
        )
    )
    policy = make_policy(name)
    assert run_policy(slower, policy).iteration_s >= run_policy(profile, policy).iteration_s
    bounds = [optimize(each).predicted.lower_bound_s for each in (profile, slower)]
    assert bounds[1] >= bounds[0] - 1e-9


@pytest.mark.parametrize(("iterations", "jitter"), [(0, 0.0), (1, -0.1), (1, float("nan")), (1, 11.0)])
def test_wrong_options_are_refused(iterations: int, jitter: float) -> None:
    """With the value."""
    with pytest.raises(InvalidOptions, match=r"is (0|-0\.1|nan|11\.0): expected"):
        run_policy(PROFILE, make_policy("fifo"), iterations=iterations, jitter=jitter)


def test_the_command_line(tmp_path: Path) -> None:
    """All policies by default, knobs for those that have them, one line for what does not exist."""
    path = tmp_path / "profile.json"
    path.write_text(PROFILE.model_dump_json())
    everything = CliRunner().invoke(app, ["simulate", str(path), "--json"])
    document = json.loads(everything.stdout)
    assert [row["policy"] for row in document["policies"]] == list(POLICIES)
    few = ["simulate", str(path), "--policy", "ddp", "--policy", "p3", "--json"]
    tuned = json.loads(CliRunner().invoke(app, [*few, "--knob", "bucket_bytes=1000000"]).stdout)
    assert [row["knobs"] for row in tuned["policies"]] == [{"bucket_bytes": 1_000_000}, {}]
    for arguments, message in (
        (["--policy", "lifo"], 'pace: no policy "lifo": choose one of fifo, horovod'),
        (["--knob", "speed=3"], 'pace: no knob "speed": "fifo" has barrier; "horovod" has '),
        (["--knob", "cycle_s=-1"], 'pace: --knob of policy "horovod": cycle_s: expected a number'),
        (
            ["--knob", "bucket_bytes=big"],
            'pace: --knob of policy "ddp": bucket_bytes: expected a whole number',
        ),
        (["--knob", "speed"], 'pace: --knob "speed": expected NAME=VALUE'),
        (["--jitter", "-1"], "pace: --jitter: expected a number from 0 to 10 (got -1.0)"),
    ):
        wrong = CliRunner().invoke(app, ["simulate", str(path), *arguments])
        assert (wrong.exit_code, wrong.stdout) == (2, "")
        assert wrong.stderr.startswith(message)
        assert len(wrong.stderr.strip().splitlines()) == 1


def test_too_many_segments_are_refused() -> None:
    """A terabyte in segments of 16 KB would fill the memory."""
    profile = layered([10**12], allreduce=affine(0, 1e-9))
    policy = make_policy("bytescheduler", partition_bytes=16_000)
    with pytest.raises(InvalidOptions, match="more than 10,000,000: use at least 100,000 bytes"):
        run_policy(profile, policy)
