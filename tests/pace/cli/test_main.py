"""The command line in real processes: one JSON document on stdout, exit codes, and what two oracles print."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pace import Options, load_profile, load_schedule, optimize
from pace.kinds import check
from tests.pace.cli.process import pace

PACE = Path(sys.executable).parent / "pace"
EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "profiles").glob("*.json"))
VGG = next(path for path in EXAMPLES if path.stem == "vgg16")
NOT_JSON = "this is not JSON: give a document of PACE (`pace import` makes one of a trace or a table)"


def succeeded(*arguments: str | Path) -> str:
    """Return the stdout of a command that must end with exit code 0."""
    done = pace(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def failed(code: int, *arguments: str | Path) -> str:
    """Return the stderr of a command that must end with `code`, without a traceback and with empty stdout."""
    done = pace(*arguments)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a schedule of VGG16, written by the command."""
    path = tmp_path_factory.mktemp("cli") / "schedule.json"
    succeeded("optimize", VGG, "-o", path)
    return path


def test_importing_pace_loads_no_torch() -> None:
    """Nor anything else that belongs to an extra or to a command."""
    heavy = ["torch", "fastapi", "matplotlib", "numba", "scipy", "pulp", "networkx", "typer"]
    program = f"import pace, sys; print('torch' in sys.modules, [m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False []"


def test_without_the_solver_its_extra_is_named() -> None:
    """A training job's installation has none of it; the command ends with the line that installs it."""
    program = "import sys; sys.modules['numba'] = None; from pace.cli import app; app()"
    command = [sys.executable, "-c", program, "optimize", str(VGG)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.endswith(
        'numba is not installed, and this command needs it: pip install "pace-scheduler[solver]"\n'
    )


def test_optimize_with_json_prints_the_schedule_and_nothing_else(solved: Path) -> None:
    """One document, the one that -o writes and the one that Python returns."""
    printed = succeeded("optimize", VGG, "--json")
    assert json.loads(printed)["schema_version"] == 1
    assert printed.encode() == solved.read_bytes() == optimize(load_profile(VGG)).to_json()


def test_optimize_prints_times_and_the_gap_in_words() -> None:
    """For people: what is predicted, and how far any other schedule could be better."""
    printed = succeeded("optimize", VGG)
    predicted = optimize(load_profile(VGG)).predicted
    assert f"{predicted.iteration_s * 1e3:.3f} ms predicted" in printed
    assert "of what any schedule can do" in printed


def test_slots_that_are_too_long_are_warned_of() -> None:
    """On stderr how much longer the iteration is, and beside the method which slots would do."""
    done = pace("optimize", VGG, "--slot-s", "0.5")
    assert done.returncode == 0
    assert "pace: warning: slots of 0.5 s make the iteration " in done.stderr
    assert "slot_s of" in done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_both_oracles_print_the_same_time_and_the_same_segments(path: Path, tmp_path: Path) -> None:
    """Longest tail first and the linear program on slots, and the checker accepts both."""
    documents: dict[str, Any] = {}
    for oracle in ("jackson", "lp"):
        schedule = tmp_path / f"{oracle}.json"
        printed = succeeded("optimize", path, "--oracle", oracle, "--slot-s", "0.002", "-o", schedule)
        assert ("linear programs by scipy" in printed) == (oracle == "lp")
        documents[oracle] = json.loads(schedule.read_text())
        assert check(load_profile(path), load_schedule(schedule)) == []
    assert documents["jackson"]["solver"].pop("oracle") == "jackson"
    assert documents["lp"]["solver"].pop("oracle") == "lp"
    assert documents["lp"]["solver"].pop("lp_solver") == "scipy"
    assert documents["lp"]["solver"].pop("num_programs") > 0
    assert documents["lp"]["solver"].pop("programs_s") > 0
    assert documents["jackson"] == documents["lp"]
    assert len(documents["lp"]["transfers"]) > 1


def test_check_accepts_with_exit_code_0(solved: Path) -> None:
    """And says so in one JSON document."""
    assert json.loads(succeeded("check", VGG, solved, "--json")) == {"valid": True, "violations": []}
    assert "valid" in succeeded("check", VGG, solved)


def test_check_rejects_with_exit_code_1_and_names_every_violation(solved: Path, tmp_path: Path) -> None:
    """Also where the schedule contradicts itself; on stdout one document, or one line each."""
    document = json.loads(solved.read_text())
    document["predicted"]["compute_s"] *= 0.5
    document["profile_sha256"] = "0" * 64
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(document))
    done = pace("check", VGG, wrong, "--json")
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert answer["valid"] is False
    assert len(answer["violations"]) == 2
    done = pace("check", VGG, wrong)
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 2
    wrong.write_text("{}")
    done = pace("check", VGG, wrong, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["valid"] is False


def test_a_broken_profile_ends_with_exit_code_1(solved: Path, tmp_path: Path) -> None:
    """And the message names the file and the op."""
    document = json.loads(VGG.read_text())
    document["ops"][3]["duration_s"] = -1
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(document))
    for message in (
        failed(1, "optimize", broken),
        failed(1, "optimize", broken, "--json"),
        failed(1, "check", broken, solved),
    ):
        assert "broken.json" in message
        assert document["ops"][3]["name"] in message


def test_a_broken_graph_ends_with_exit_code_1(solved: Path, tmp_path: Path) -> None:
    """As a broken profile does, with each field that is wrong."""
    broken = tmp_path / "broken.json"
    broken.write_text('{"exchange": "graph", "nodes": []}')
    for arguments in (["optimize"], ["simulate"], ["what-if"]):
        assert "wires" in failed(1, *arguments, broken)
    assert "wires" in failed(1, "check", broken, solved)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--oracle", "guess"], "guess"),
        (["--oracle", "lp"], "give --slot-s"),
        (["--oracle", "lp", "--slot-s", "0.01", "--lp-solver", "pulp:NONE"], "PULP_CBC_CMD"),
        (["--lp-solver", "pulp"], "--lp-solver"),
        (["--slot-s", "0"], "--slot-s: "),
        (["--slot-s", "nan"], "--slot-s: "),
        (["--slot-s", "1e-15"], "use --slot-s of"),
        (["--oracle", "lp", "--slot-s", "1e-7"], "use --slot-s of"),
        (["--for", "ddp", "--slot-s", "0.001"], '--for "ddp" does not cut groups: leave --slot-s out'),
        (["--max-group-bytes", "0"], "--max-group-bytes: "),
        (
            ["--slot-s", "1", "--risk", "p95"],
            '--slot-s cannot be combined with --max-segment-bytes or --risk "p95"',
        ),
        (["--no-such-option"], "no-such-option"),
        (["--partition-bytes", "5"], "only for exchange servers"),
    ],
)
def test_wrong_usage_ends_with_exit_code_2(arguments: list[str], named: str) -> None:
    """Options that do not exist or do not fit one another, with a sentence that says what would."""
    assert named in failed(2, "optimize", VGG, *arguments)


def test_a_wrong_word_is_refused_in_words_of_the_command() -> None:
    """Without those of the library that reads options."""
    said = failed(2, "optimize", VGG, "--exchange", "server")
    assert "Value error" not in said
    assert "'server' is not one of 'allreduce'" in " ".join(said.split())


def test_missing_files_and_arguments_are_wrong_usage(tmp_path: Path) -> None:
    """There is nothing to look at."""
    failed(2, "optimize", tmp_path / "nowhere.json")
    failed(2, "check", VGG)


def test_another_kind_of_document_is_told_in_one_line() -> None:
    """A profile where a schedule or a job program belongs."""
    checked = pace("check", VGG, VGG)
    assert checked.returncode == 1
    assert checked.stderr.endswith(": 1 violation\n")
    for said in (checked.stdout, failed(1, "check-order", VGG)):
        assert "this is a profile" in said
        assert said.count("\n") == 1


@pytest.mark.parametrize("content", [b"name;forward_ms\nstem;1\n", b"\x80\x04\x95\x0b", b"%PDF-1.4\n"])
def test_a_table_or_binary_file_is_told_in_one_line(content: bytes, tmp_path: Path) -> None:
    """With the command that reads tables."""
    (file := tmp_path / "profile.json").write_bytes(content)
    said = failed(1, "optimize", file)
    assert said == f"pace: {file}: {NOT_JSON}\n"


def test_a_trace_in_place_of_a_profile_is_told_in_one_line(tmp_path: Path) -> None:
    """With what makes a profile of it."""
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": []}))
    for command in ("optimize", "what-if"):
        said = failed(1, command, trace)
        assert "this is a trace: make a profile of it with `pace import`, or use `pace headroom`" in said
        assert said.count("\n") == 1


def test_a_schedule_in_place_of_its_profile_is_told_in_one_line(tmp_path: Path) -> None:
    """Arguments of `pace check` in the wrong order."""
    schedule = tmp_path / "schedule.json"
    assert pace("optimize", VGG, "-o", schedule).returncode == 0
    told = f"pace: {schedule}: this is a schedule: give the profile or the graph for which it was made\n"
    assert failed(1, "check", schedule, VGG) == told


@pytest.mark.parametrize(
    "words",
    [
        ("optimize",),
        ("check", "SCHEDULE"),
        ("simulate", "--policy", "fifo"),
        ("what-if", "--bandwidth-gbps", "1", "--policy", "fifo"),
        ("headroom",),
    ],
    ids=lambda words: words[0],
)
def test_what_can_be_read_only_once_is_read_once(words: tuple[str, ...], tmp_path: Path) -> None:
    """A named pipe: what comes of it is what comes of the file."""
    schedule, pipe = tmp_path / "schedule.json", tmp_path / "profile.json"
    assert pace("optimize", VGG, "-o", schedule).returncode == 0
    command, *options = (str(schedule) if word == "SCHEDULE" else word for word in words)
    from_file = pace(command, VGG, *options)
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as thread:
        written = thread.submit(pipe.write_bytes, VGG.read_bytes())
        from_pipe = pace(command, pipe, *options)
        written.result()
    assert (from_pipe.returncode, from_pipe.stdout) == (from_file.returncode, from_file.stdout)
    assert from_file.returncode == 0


def test_a_file_that_cannot_be_written_ends_with_exit_code_3(tmp_path: Path) -> None:
    """The environment failed, not the question."""
    there = tmp_path / "no" / "such" / "folder.json"
    assert failed(3, "optimize", VGG, "-o", there, "--json") == f"pace: {there}: No such file or directory\n"
    assert failed(3, "optimize", VGG, "-o", Path("/dev/full")) == "pace: No space left on device\n"
    for command, option in (("headroom", "--html"), ("what-if", "--html")):
        assert failed(3, command, VGG, option, tmp_path) == f"pace: {tmp_path}: Is a directory\n"


@pytest.mark.parametrize(
    ("address", "code", "complaint"),
    [
        (
            "127.0.0.1:8080",
            2,
            "--service is '127.0.0.1:8080', which is not a URL: use 'http://127.0.0.1:8080'",
        ),
        ("http:///x", 2, "--service is 'http:///x', which is not a URL: use 'http://x'"),
        ("https://", 2, "--service is 'https://', which is not a URL: use 'http://127.0.0.1:8080'"),
        ("http://127.0.0.1:99999", 2, "which is not a URL: Port out of range"),
        ("http://127.0.0.1:9", 3, "no PACE service answers at this address"),
    ],
)
def test_an_address_without_a_service_is_told_soon(address: str, code: int, complaint: str) -> None:
    """Within the time in which a service starts, and not after the time-out of a result."""
    assert complaint in failed(code, "submit", VGG, "--service", address, "--timeout-s", "1")


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    """It would take the place of the API key."""
    refused = failed(2, "submit", VGG, "--service", "http://me:secret@127.0.0.1:9")
    assert "out of the URL, and give an API key with --api-key or PACE_API_KEY" in refused
    assert "secret" not in refused
    refused = failed(2, "submit", VGG, "--service", "http://127.0.0.1:9", "--timeout-s", "inf")
    assert refused.startswith("pace: --timeout-s is inf: expected a positive number of seconds")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["headroom", VGG, "--execution-trace", VGG],
            "is for Kineto traces, and this is another kind of file",
        ),
        (["fit", VGG], "not a log of a known tool"),
    ],
)
def test_a_file_that_would_be_ignored_is_refused(arguments: list[str | Path], complaint: str) -> None:
    """Instead of an answer that does not use it."""
    assert complaint in failed(1, *arguments)


def test_simulate_says_how_many_images_a_second(tmp_path: Path) -> None:
    """Of all workers together; without a batch, the table and the document have iteration times alone."""
    profile = json.loads(VGG.read_text())
    metadata = profile["metadata"]
    document = json.loads(succeeded("simulate", VGG, "--policy", "ddp", "--json"))
    (ddp,) = document["policies"]
    assert document["throughput_unit"] == "images/s"
    assert ddp["throughput"] == pytest.approx(profile["workers"] * metadata["batch"] / ddp["iteration_s"])
    assert f"{ddp['throughput']:,.5g}" in succeeded("simulate", VGG, "--policy", "ddp")
    del metadata["batch"]
    other = tmp_path / "no-batch.json"
    other.write_text(json.dumps(profile))
    document = json.loads(succeeded("simulate", other, "--policy", "ddp", "--json"))
    assert document["policies"][0]["throughput"] is None
    assert "/s" not in succeeded("simulate", other, "--policy", "ddp")


def test_policies_of_other_exchanges_say_what_they_need() -> None:
    """A kind of file and where it comes from, or options."""
    for command in ("simulate", "what-if"):
        said = failed(2, command, VGG, "--policy", "fsdp2")
        assert '"fsdp2" needs a graph file, from `pace import node-list` or `CollectivePlanner`' in said
        assert "`pace simulate --servers 2`" in failed(2, command, VGG, "--policy", "byteps")


def test_a_file_that_is_read_is_not_overwritten(tmp_path: Path) -> None:
    """Nor is one file written twice, whatever the paths look like."""
    profile, other = tmp_path / "profile.json", tmp_path / "other.json"
    profile.write_bytes(VGG.read_bytes())
    alias = f"{tmp_path}/../{tmp_path.name}/profile.json"
    attempts: list[list[str | Path]] = [
        ["optimize", profile, "-o", alias],
        ["import", profile, "-o", profile],
        ["optimize", profile, "-o", other, "--timeline", other],
        ["check-order", profile, "--html", profile],
    ]
    for arguments in attempts:
        assert "is named twice" in failed(2, *arguments)
    assert profile.read_bytes() == VGG.read_bytes()
    assert not other.exists()


def test_timeline_and_program_are_written(tmp_path: Path) -> None:
    """A Chrome trace, and the linear program in the format that its name says."""
    trace, program = tmp_path / "trace.json", tmp_path / "program.mps"
    succeeded(
        "optimize", VGG, "--slot-s", "0.01", "--timeline", trace, "--write-lp", program, "--fusion", "none"
    )
    assert json.loads(trace.read_text())["traceEvents"]
    assert "serve_0" in program.read_text()
    message = failed(2, "optimize", VGG, "--slot-s", "0.01", "--write-lp", tmp_path / "program.txt", "--json")
    assert ".mps" in message
    assert "--slot-s" in failed(2, "optimize", VGG, "--write-lp", program, "--json")


@pytest.mark.parametrize("target", ["ddp", "horovod"])
def test_frameworks_are_told_what_to_pass(target: str) -> None:
    """The bucket sizes or groups, and what the barrier costs."""
    printed = succeeded("optimize", VGG, "--for", target)
    assert "slower than without the barrier" in printed
    assert {"ddp": "bucket_cap_mb_list=[", "horovod": "groups (names"}[target] in printed
    assert ("--ddp-bucket-size" in printed) == (target == "ddp")
    assert json.loads(succeeded("optimize", VGG, "--for", target, "--json"))["framework"] == target


def test_model_computes_a_profile(tmp_path: Path) -> None:
    """From layer shapes; the file is a valid profile of that many workers."""
    path = tmp_path / "resnet.json"
    arguments: list[str | Path] = ["--device-tflops", "8", "--batch", "32", "--workers", "16", "-o", path]
    assert succeeded("model", "resnet50", *arguments) == ""
    profile = load_profile(path)
    assert profile.workers == 16
    assert optimize(profile, Options(fusion="none")).fingerprint == profile.fingerprint
    assert "resnet50" in failed(2, "model", "resnet5000", *arguments)


def test_without_a_command_help_is_printed() -> None:
    """And names every command that is stable."""
    done = subprocess.run([PACE, "--help"], capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0
    for command in ("optimize", "check", "model", "serve", "submit"):
        assert command in done.stdout


def test_slotted_plans_say_what_does_not_count() -> None:
    """Their end in whole slots may be later than the prediction. It is no ideal, and load does not count."""
    shown = succeeded("optimize", VGG, "--slot-s", "0.01")
    assert "in whole slots" in shown
    assert "if preemption were free;" not in shown
    assert "under load  not considered" in shown
