"""The demo's program from end to end: a real service, two real workers, plain training and PACE."""

import json
import os
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pace.documents.profile import load_profile
from pace.documents.schedule import load_schedule
from pace.kinds import check
from tests.preloaded import ROOT, Programs

# What README shows of rank 0's log.
EVENTS = ("pace.wrapped gradients=14 ", "pace.schedule_found ", "pace.trial ", "pace.mode_chosen ")
# A program, and no module of a package.
BALANCE = runpy.run_path(str(ROOT / "examples" / "balance.py"))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """What starts programs quickly."""
    with Programs(tmp_path_factory.mktemp("programs")) as started:
        yield started


@pytest.mark.races_with_machine(reason="the service must answer in the 2 s that workers wait at the start")
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_demo_trains_to_the_same_weights(programs: Programs, tmp_path: Path) -> None:
    """It ends by itself; the schedule passes the checker; 32 steps under PACE equal 32 plain ones."""
    options = ["--steps", "32", "--batch-size", "1", "--out", str(tmp_path), "--attempts", "1", "--details"]
    command = [str(programs.python), str(ROOT / "examples" / "demo.py"), *options]
    environment = os.environ | programs.environment
    ended = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=1180, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for shown in ("compute alone ms", "predicted ms", "measured ms", "priority", "pace headroom", *EVENTS):
        assert shown in ended.stdout
    assert ("weights equal" in ended.stdout) != ("Not trustworthy here" in ended.stdout), ended.stdout
    profile = load_profile(tmp_path / "profile.json")
    assert check(profile, load_schedule(tmp_path / "schedule.json")) == []
    plain, pace = (torch.load(tmp_path / f"{name}.pt") for name in ("plain", "pace"))
    assert plain.keys() == pace.keys()
    for name, weight in plain.items():
        assert torch.allclose(weight, pace[name], rtol=1e-5, atol=1e-7), name
    trial = json.loads((tmp_path / "pace.trial.json").read_text())
    assert trial["trial_s"].keys() == {"plain", "barrier", "overlap"}
    for timeline in ("predicted.trace.json", "pace.trace.json"):
        assert json.loads((tmp_path / timeline).read_text())["traceEvents"]
    assert (tmp_path / "windows.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob("turns.lock.*")), "no worker is left that takes turns"


def test_the_demo_says_what_it_measured_or_that_it_cannot() -> None:
    """A machine whose speed changes gives no ratio; the limit is a tenth."""
    verdict = runpy.run_path(str(ROOT / "examples" / "demo.py"))["verdict"]

    def times(
        plain_alone_s: float, pace_alone_s: float, *, is_plain: bool = False
    ) -> dict[str, dict[str, float]]:
        return {
            "plain": {"iteration_s": 1.002, "compute_alone_s": plain_alone_s},
            "pace": {"iteration_s": 0.853, "compute_alone_s": pace_alone_s, "is_plain": is_plain},
        }

    said, trusted = verdict(times(0.52, 0.53), 0.5, 1e-7)
    assert (said, trusted) == ("DDP 1002 ms, PACE 853 ms: 1.17 times as fast; weights equal.", True)
    assert verdict(times(0.52, 0.53), 0.5, 0.0, "Horovod")[0].startswith("Horovod 1002 ms")
    assert "weights up to 2.0% apart" in verdict(times(0.52, 0.53), 0.5, 0.02)[0]
    assert "PACE kept plain training" in verdict(times(0.52, 0.53, is_plain=True), 0.5, 0.0)[0]
    said, trusted = verdict(times(0.70, 0.771), 0.511, 1e-7)
    assert not trusted
    assert said.startswith(
        "Not trustworthy here: compute alone took 511 ms at the capture, 700 ms under DDP, 771"
    )
    assert not verdict(times(0.5, 0.56), 0.5, 0.0)[1]


def test_communication_takes_as_long_as_compute() -> None:
    """About 0.25 s of compute on machines of any usual speed, and a little longer to send."""
    for seconds_an_image in (0.0013, 0.0024, 0.007, 0.0082, 0.03, 0.036):
        images = BALANCE["batch_images"](seconds_an_image)
        assert images % 4 == 0
        assert images * seconds_an_image == pytest.approx(0.25, rel=0.21), "a batch is rounded to four images"
        rate_mbit_s = BALANCE["rate_mbit_s"](12_300_000, images * seconds_an_image)
        sent_s = 12_300_000 * 8 / (rate_mbit_s * 1e6)
        assert sent_s == pytest.approx(1.15 * images * seconds_an_image, rel=0.001)


def test_a_batch_has_limits() -> None:
    """On a machine that is far slower or faster than usual."""
    assert BALANCE["batch_images"](3.0) == 8
    assert BALANCE["batch_images"](1e-5) == 256


@pytest.mark.slow
def test_the_demo_measures_the_machine_at_hand(programs: Programs) -> None:
    """The command as the demo runs it: a batch and a rate that such a batch can have."""
    command = [str(programs.python), "-m", "examples.balance"]
    environment = os.environ | programs.environment
    printed = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment, timeout=600
    ).stdout.split()
    images, rate = int(printed[0]), float(printed[1])
    assert images % 4 == 0
    assert 8 <= images <= 256
    assert rate > 0
