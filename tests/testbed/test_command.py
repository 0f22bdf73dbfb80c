"""The command of the testbed: grids and contenders."""

import pytest

from benchmarks.harness.layouts import Layout
from benchmarks.studies import testbed


def test_the_command_says_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contenders are listed; unknown ones and layouts are refused."""
    monkeypatch.setattr("sys.argv", ["testbed", "servers", "--list"])
    assert testbed.main() == 0
    listed = capsys.readouterr().out
    assert "servers-bytescheduler" in listed
    assert "horovod" not in listed
    for wrong in (
        ["--contenders", "nobody"],
        ["--layouts", "one"],
        ["--layouts", "1x4"],
        ["--layouts", "2x0"],
        ["--models", "alexnet"],
        ["real", "--clip"],
    ):
        with pytest.raises(SystemExit):
            testbed.parse(wrong)


def test_options_change_the_kind_s_grid() -> None:
    """A kind of record has a grid of its own; a quick run has the first of everything, but both pacings."""
    _, grid = testbed.parse(["servers", "--layouts", "2+1,4+1", "--pacing", "on", "--models", "vgg16"])
    assert grid.layouts == (Layout(2, 1), Layout(4, 1))
    assert (grid.pacing, grid.models) == ((True,), ("vgg16",))
    _, quick = testbed.parse(["servers", "--quick", "--layouts", "4c,2+2", "--ratios", "2,1"])
    assert (quick.layouts, quick.ratios, quick.rounds) == ((Layout(4, 4, True),), (2.0,), 2)
    assert quick.pacing == (True, False)
    assert testbed.parse(["clipped"])[1].clip
    assert testbed.parse(["hsdp"])[1].layouts == (Layout(4, shards=2), Layout(8, shards=4))
    assert testbed.parse(["hsdp", "--layouts", "4x2", "--inner-mbit-s", "300"])[1].inner_mbit_s == 300
    assert testbed.parse(["real"])[1].models == ("cnn", "encoder")
