"""The chart of a window with parameter servers: what it says, read from the SVG's text."""

import re
from pathlib import Path

import matplotlib
import pytest

from pace.documents.cluster import Cluster
from pace.documents.options import Options
from pace.documents.push_pull import PushPull
from pace.view.chart import plot
from pace.view.window import lay_out
from pace_servers.planning.optimize import optimize_servers
from tests.pace.view.test_windows import two_layers
from tests.strategies import layered


def test_the_chart_shows_compute_and_every_connection(tmp_path: Path) -> None:
    """A row for pushes to and pulls from each server; both messages of a segment have its group's number."""
    profile = layered(
        [4_000_000] * 2,
        workers=2,
        backward_s=[0.01] * 2,
        forward_s=[0.01] * 2,
        allreduce=PushPull(servers=2, worker_bytes_per_s=4e8),
    )
    exchange = PushPull(servers=2, worker_bytes_per_s=4e8, partition_s=0.0, round_trip_s=0.0)
    options = Options(
        cluster=Cluster(name="two", exchange=exchange), fusion="none", partition_bytes=4_000_000
    )
    schedule = optimize_servers(profile, options)
    assert [segment.link for segment in schedule.of_op("push")] == [0, 2, 0, 2]  # each group half and half
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot(profile, schedule, tmp_path / "window.svg")
    words = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "window.svg").read_text())
    for server in (0, 1):
        assert words.count(f"push to server {server}") == words.count(f"pull from server {server}") == 1
    assert words.count("1") == 4
    assert words.count("0") == 5  # that of the axis too
    assert any("ms predicted" in word and "2 groups in 4 segments" in word for word in words)
    assert any(word.startswith("no schedule is faster") for word in words)


def test_pushes_and_pulls_have_a_row_for_each_way() -> None:
    """Each byte is pushed once and pulled once."""
    exchange = PushPull(worker_bytes_per_s=1e6, servers=2)
    profile = two_layers().replace(allreduce=exchange)
    schedule = optimize_servers(profile, Options(cluster=Cluster(name="two", exchange=exchange)))
    window = lay_out(profile, schedule)
    assert window.links == (
        "push to server 0",
        "pull from server 0",
        "push to server 1",
        "pull from server 1",
    )
    assert sum(moved.size_bytes for moved in window.transfers) == 2 * 4000
    assert max(window.times.ends_s.tolist()) == pytest.approx(schedule.predicted.iteration_s, rel=1e-6)
