"""Options that describe servers: who shows them, and for whom they are refused."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pace.cli import app
from pace.documents.push_pull import PushPull
from tests.pace.cli.test_help import shown_options
from tests.sharded_graphs import tiny_graph
from tests.strategies import affine, layered

PLAIN = layered([4, 8], allreduce=affine(0.0, 1e-9))


def test_help_shows_them_where_servers_are_chosen(tmp_path: Path) -> None:
    """By an option, or by the profile; elsewhere they are not shown."""
    clipped, served, graph = (tmp_path / f"{name}.json" for name in ("clipped", "served", "graph"))
    clipped.write_bytes(PLAIN.replace(update="global-norm").to_json())
    cost = PushPull(servers=1, worker_bytes_per_s=1e9)
    served.write_bytes(PLAIN.replace(allreduce=cost).to_json())
    graph.write_bytes(tiny_graph(1).to_json())
    assert "--servers" not in shown_options("optimize")
    assert {"--servers", "--partition-bytes"} <= shown_options("optimize", "--servers", "2")
    assert "--partition-bytes" in shown_options("optimize", served)
    assert "--memory-gb" in shown_options("optimize", graph, "--servers", "2")
    assert "--latency-s" in shown_options("what-if", served)
    assert "--staleness" in shown_options("simulate", clipped, "--staleness", "2")
    assert "--staleness" in shown_options("simulate", served)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("optimize", "graph", "--servers", "2"), "--servers is only for exchange servers"),
        (("simulate", "plain", "--exchange", "allreduce", "--colocated"), "only for exchange servers"),
    ],
)
def test_they_are_refused_elsewhere(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    """With the way to the kind that has them."""
    (tmp_path / "plain").write_bytes(PLAIN.to_json())
    (tmp_path / "graph").write_bytes(tiny_graph(1).to_json())
    command, name, *options = arguments
    done = CliRunner().invoke(app, [command, str(tmp_path / name), *options])
    assert done.exit_code == 2
    assert told in done.stderr
