"""``pace import`` and ``pace fit`` as a user runs them: real processes, small files."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pace.cli.main import app
from pace.documents.profile import load_profile
from pace.models import NAMES
from pace.version import __version__
from tests.pace.cli.process import pace

LAYERS = """name,forward_ms,backward_ms,parameter_bytes
conv,1.0,2.0,4000
fc,0.5,1.0,8000
"""
OSU = """# OSU MPI Allreduce Latency Test v7.1
# Size       Avg Latency(us)
1024                   20.0
4096                   30.0
1048576              2000.0
"""


def test_a_layer_table_becomes_a_profile_with_the_cost_that_was_fitted(tmp_path: Path) -> None:
    """The cost that `pace fit -o` writes is what `pace import --cost` reads."""
    (tmp_path / "layers.csv").write_text(LAYERS)
    (tmp_path / "osu.log").write_text(OSU)
    cost, profile = tmp_path / "cost.json", tmp_path / "profile.json"
    fitted = pace("fit", tmp_path / "osu.log", "--workers", 4, "-o", cost, "--json")
    assert fitted.returncode == 0, fitted.stderr
    assert json.loads(fitted.stdout) == json.loads(cost.read_text())
    made = pace("import", "layers", tmp_path / "layers.csv", "--workers", 4, "--cost", cost, "-o", profile)
    assert made.returncode == 0, made.stderr
    loaded = load_profile(profile)
    assert [gradient.size_bytes for gradient in loaded.gradients] == [8000, 4000]
    assert float(loaded.cost(4096)) == pytest.approx(30e-6)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--bandwidth-gbps", 10], 1, "conv"),
        ([], 2, "--bandwidth-gbps"),
        (["--bandwidth-gbps", -1], 2, "above 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_message(
    tmp_path: Path, options: list[object], code: int, message: str
) -> None:
    """A wrong file exits 1 and names the place; wrong usage exits 2 and says what would work."""
    table = tmp_path / "layers.csv"
    table.write_text(LAYERS.replace("fc,0.5", "conv,0.5"))
    made = pace("import", "layers", table, "--workers", 4, "-o", tmp_path / "profile.json", *options)
    assert made.returncode == code
    assert message in made.stderr
    assert "Traceback" not in made.stderr


def test_options_that_cannot_be_meant_are_refused_before_any_work(tmp_path: Path) -> None:
    """A chart of an unknown format, operations a second for TFLOP/s, a profile for a cost."""
    profile = tmp_path / "vgg.json"
    made = ["model", "vgg16", "--device-tflops", "15", "--batch", "8", "--workers", "4", "-o", str(profile)]
    assert CliRunner().invoke(app, made).exit_code == 0
    for command, reason in (
        (["optimize", str(profile), "--plot", "out.xyz"], "ends in .png, .svg, .pdf"),
        (["what-if", str(profile), "--plot", "out.xyz"], "ends in .png, .svg, .pdf"),
        ([*made[:3], "15e12", *made[4:]], "For 15e12 operations per second, give 15"),
        (
            ["import", "layers", str(profile), "-o", "x", "--workers", "2", "--cost", str(profile)],
            "expected a cost as `pace fit -o` writes it, not a profile",
        ),
    ):
        refused = CliRunner().invoke(app, command)
        assert refused.exit_code == 2
        assert reason in refused.stderr


def test_version_and_names_are_printed() -> None:
    """Without any other argument."""
    assert CliRunner().invoke(app, ["--version"]).stdout == f"pace {__version__}\n"
    listed = [line.split() for line in CliRunner().invoke(app, ["model", "--list"]).stdout.splitlines()]
    assert [line[0] for line in listed[1:]] == list(NAMES)
    assert ["resnet50", "157", "25,549,486", "images"] in listed


@pytest.mark.parametrize("workers", ["0", "-1", "1000001"])
def test_impossible_numbers_of_workers_name_the_option(tmp_path: Path, workers: str) -> None:
    """As wrong usage, before a file is read."""
    table = tmp_path / "table.csv"
    table.write_text("bytes,seconds\n1024,0.1\n")
    layers = ["import", "layers", table, "-o", tmp_path / "x", "--bandwidth-gbps", "1"]
    for command in (["fit", table], layers):
        result = pace(*command, f"--workers={workers}")
        assert result.returncode == 2
        assert "--workers" in result.stderr


@pytest.mark.parametrize(
    ("header", "found"),
    [("a,b", "only a, b"), ("bytes,size_mib,seconds", "2 (bytes, size_mib)")],
    ids=["no size", "two sizes"],
)
def test_a_table_needs_one_column_of_sizes(tmp_path: Path, header: str, found: str) -> None:
    """The message says which names are expected, and what the header has."""
    table = tmp_path / "costs.csv"
    table.write_text(f"{header}\n{','.join('1' * (header.count(',') + 1))}\n")
    result = pace("fit", table)
    assert result.returncode == 1
    assert "expected one column of sizes, named bytes, kib, " in result.stderr
    assert f"the header has {found}\n" in result.stderr


def test_a_file_that_is_nested_too_deeply_is_refused_in_plain_words(tmp_path: Path) -> None:
    """A limit of the parser is not the reader's business."""
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 10_000 + "]" * 10_000)
    result = pace("optimize", deep, "-o", tmp_path / "x")
    assert result.returncode == 1
    assert "nested too deep: give another file" in result.stderr
