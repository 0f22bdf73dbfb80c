"""What an import says of itself: the replayed step, what was dropped, and what cannot be trusted."""

import json
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pace.cli.main import app
from pace.documents.profile import load_profile
from pace.errors import FormatError
from pace.formats.import_report import import_report, misleading, report_lines
from pace.formats.kineto import read_kineto
from pace.formats.reading import FormatWarning
from tests.pace.formats.kineto_features import launched_events, rounded_events
from tests.pace.formats.traces import kineto_document, kineto_events, write_json


def test_the_hybrid_clock_explains_the_whole_step(tmp_path: Path) -> None:
    """Each step is 10,000 us on the device, all of it kernels, waiting for the host or the wire.

    Between the first and the second step's last kernels nothing else happens, so that ops and update
    add up to a step.
    """
    path = write_json(tmp_path / "t.json", kineto_document(launched_events()))
    profile = read_kineto([path])
    assert profile.metadata["clock"] == "hybrid"
    busy = sum(op.duration_s for op in profile.ops)
    assert busy + profile.metadata["exposed_communication_s"] == pytest.approx(0.01)
    assert profile.metadata["replay"]["error"] == pytest.approx(0, abs=0.02)
    assert list(misleading(profile)) == []


def test_a_replay_that_is_off_is_said_and_repeated(tmp_path: Path) -> None:
    """On the device's clock 2.4 of 10 ms are kernels: the rest is named at the import and by answers."""
    path = write_json(tmp_path / "t.json", kineto_document(kineto_events()))
    made = tmp_path / "profile.json"
    done = CliRunner().invoke(app, ["import", "kineto", str(path), "-o", str(made), "--clock", "device"])
    assert done.exit_code == 0, done.output
    assert "off the recorded one" in done.stderr
    profile = load_profile(made)
    assert profile.metadata["replay"]["error"] == pytest.approx(2.394 / 10 - 1, abs=0.02)
    for command in (["optimize", str(made)], ["what-if", str(made), "--bandwidth-gbps", "10"]):
        answer = CliRunner().invoke(app, command)
        assert answer.exit_code == 0, answer.output
        assert "and so may be this answer" in " ".join(answer.stderr.split())


def test_answers_say_that_they_do_not_count_waiting_for_late_ranks(tmp_path: Path) -> None:
    """From 2 % of the step on: only the headroom counts it."""
    profile = read_kineto([write_json(tmp_path / "t.json", kineto_document(launched_events()))])
    said = []
    for share in (0.015, 0.025):
        replay = profile.metadata["replay"]
        late_s = share * replay["predicted_s"]
        late = profile.replace(metadata=profile.metadata | {"replay": replay | {"late_s": late_s}})
        said.append(list(misleading(late)))
    assert said[0] == []
    assert "of waiting for late ranks or the host in each step" in said[1][0]


def test_a_device_that_waits_for_its_host_is_pointed_out(tmp_path: Path) -> None:
    """Recording slows such a job, so that the trace shows a slower one: the report says to compare."""
    path = write_json(tmp_path / "t.json", kineto_document(launched_events()))
    report = import_report(read_kineto([path]))
    wall = report["step_wall_s"]
    said = ["\n".join(report_lines(report | {"host_wait_s": share * wall})) for share in (0.19, 0.21)]
    assert ["compare the step with one that is not recorded" in text for text in said] == [False, True]


def test_the_report_counts_what_was_dropped(tmp_path: Path) -> None:
    """As text and as JSON."""
    path = write_json(tmp_path / "t.json", kineto_document(rounded_events()))
    out = str(tmp_path / "profile.json")
    done = CliRunner().invoke(app, ["import", "kineto", str(path), "-o", out, "--json"])
    report = json.loads(done.stdout)
    assert report["gradients"] == 3
    assert report["gradient_bytes"] == 2040
    assert report["dropped"]["kernels_before_recording"] == 1
    assert any("one rank" in warning for warning in report["warnings"])
    assert report == json.loads(json.dumps(import_report(load_profile(tmp_path / "profile.json"))))
    assert any("1 kernels launched before recording" in line for line in report_lines(report))


def test_missing_gradients_are_said(tmp_path: Path) -> None:
    """All-reduces that carried more than the gradients found: a warning with both sizes."""
    events = kineto_events()
    for event in events:
        if event.get("args", {}).get("In msg nelems") == 300:
            event["args"]["In msg nelems"] = 900
    path = write_json(tmp_path / "t.json", kineto_document(events))
    with pytest.warns(FormatWarning, match=r"carried 4,440 bytes, and the 3 gradients found have 2,040"):
        profile = read_kineto([path])
    assert profile.metadata["recorded_allreduces_match"] is False


def test_a_list_of_parameters_gives_sizes(tmp_path: Path) -> None:
    """In the order of definition; gradients become ready in reverse: bias, weight, convolution."""
    rows = [["conv", [300], "torch.float32"], ["weight", [10, 20], "torch.float32"]]
    listed = write_json(tmp_path / "p.json", [*rows, ["bias", [10], "torch.float32"]])
    path = write_json(tmp_path / "t.json", kineto_document(kineto_events(shapes=False)))
    with pytest.warns(FormatWarning, match="reverse order of definition"):
        profile = read_kineto([path], parameters=listed)
    assert [gradient.size_bytes for gradient in profile.gradients] == [40, 800, 1200]
    assert profile.metadata["recorded_allreduces_match"] is True
    with pytest.raises(FormatError, match="3 gradients a step, and 2 parameters in the list"):
        read_kineto([path], parameters=write_json(tmp_path / "p.json", rows))
    with warnings.catch_warnings(), pytest.raises(FormatError, match=r"\[0\]: expected"):
        read_kineto([path], parameters=write_json(tmp_path / "p.json", [["conv", [300]]]))


def test_a_host_that_prepares_the_update_beside_an_all_reduce_does_not_wait(tmp_path: Path) -> None:
    """The device is done with the backward pass at 5,529 us; the second all-reduce ends at 7,019.

    The host launches the next kernel at 7,015. Until then nothing waits for the all-reduce.
    """
    events = launched_events()
    for event in events:
        if event["args"].get("In msg nelems") == 300:
            event["ts"] += 940  # when its gradient is ready
            event["dur"] = 7019 - event["ts"] % 10_000
    profile = read_kineto([write_json(tmp_path / "t.json", kineto_document(events))])
    (host,) = (op for op in profile.ops if op.name.endswith(".host"))
    assert host.duration_s == pytest.approx(1486e-6, abs=30e-6)
    assert profile.metadata["replay"]["error"] == pytest.approx(0, abs=0.02)
