"""Graphs of sharded training through the client and its commands, against a real service."""

from pathlib import Path

import pytest

from pace import InvalidOptions, InvalidProfile, Options, load_profile, load_schedule, optimize
from pace.client import Client
from pace.kinds import check
from pace.planning.graph.arrays import program_of
from pace.solver.graph.list_schedule import UNLIMITED
from pace.whatif.graphs import GraphGrid, what_if_graph
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller
from tests.pace.cli.process import pace
from tests.sharded_graphs import backward, forward, graph_of
from tests.solver.graph.exhaustive import fastest

GRAPH = graph_of(backward(4))
SMALL = graph_of(backward(2))
TINY = graph_of(forward(3, compute_s=1.0))
PROFILE = Path(__file__).parents[2] / "examples" / "profiles" / "vgg16.json"


@ON_SQLITE
def test_the_client_asks_for_graphs_as_for_profiles(service: Caller) -> None:
    """With a budget and without, as the library itself would plan them."""
    with Client(service.url, service.token, timeout_s=250) as client:
        free = client.create_schedule(GRAPH)
        assert free == optimize(GRAPH)
        budget = Options(memory_bytes=(free.predicted.peak_bytes or 0) - 1)
        assert client.create_schedule(GRAPH, budget) == optimize(GRAPH, budget)
        with pytest.raises(InvalidOptions, match="a memory budget of 1 bytes is too small"):
            client.create_schedule(GRAPH, Options(memory_bytes=1))


@ON_SQLITE
def test_no_plan_is_faster_than_what_the_service_answers(service: Caller) -> None:
    """Every order and every bucket of three layers, enumerated."""
    with Client(service.url, service.token, timeout_s=250) as client:
        schedule = client.create_schedule(TINY)
    assert schedule.predicted.iteration_s == pytest.approx(fastest(program_of(TINY), UNLIMITED))


def test_what_a_graph_does_not_have_is_refused_before_it_is_sent() -> None:
    """Options of profiles and a job: nothing listens at this address, and nobody is asked."""
    with Client("http://127.0.0.1:1", timeout_s=1) as client:
        for options, job, words in (
            (Options(fusion="none"), None, 'fusion: exchange "graph" only has memory_bytes'),
            (Options(exchange="sharded"), None, 'exchange "sharded" is not possible'),
            (None, "train", 'job "train"'),
        ):
            with pytest.raises(InvalidOptions, match=words):
                client.create_schedule(GRAPH, options, job)
        with pytest.raises(InvalidProfile, match="a Profile is needed"):
            client.create_schedule({})  # type: ignore[arg-type]  # what is refused


@ON_SQLITE
def test_the_client_asks_what_if_of_graphs(service: Caller) -> None:
    """As the library answers, with progress; what the client or the service refuses is an error."""
    grid = GraphGrid(ranks=(2, 8), memory_gb=(1e-7, 1.0), policies=("as-traced", "pace"))
    told: list[int] = []
    with Client(service.url, service.token, timeout_s=250) as client:
        assert client.what_if(GRAPH, grid, progress=told.append) == what_if_graph(GRAPH, grid)
        assert sum(told) <= grid.num_cells
        with pytest.raises(InvalidOptions, match="do not divide into 3 shards"):
            client.what_if(GRAPH, GraphGrid(ranks=(3,)))
        with pytest.raises(InvalidOptions, match=r"bandwidth_factor: .*1e-07"):
            client.what_if(GRAPH, GraphGrid(bandwidth_factor=(1e-7,)))


@ON_SQLITE
def test_what_if_takes_graphs(service: Caller, tmp_path: Path) -> None:
    """The service's answer is printed as the local one, and written as a chart; refusals are one line."""
    pytest.importorskip("matplotlib")
    graph, chart = tmp_path / "graph.json", tmp_path / "chart.svg"
    graph.write_bytes(SMALL.to_json())
    asked = ("what-if", graph, "--bandwidth-factor", "0.5,2", "--ranks", "2", "--memory-gb", "1e-7,1")
    there = ("--service", service.url, "--api-key", service.token)
    for form in ((), ("--json",), ("--csv",), ("--policy", "pace", "--json")):
        done = pace(*asked, *there, *form)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == pace(*asked, *form).stdout
    drawn = pace(*asked, *there, "--plot", chart)
    assert drawn.returncode == 0, drawn.stderr
    assert "<svg" in chart.read_text()
    for code, words, arguments in (
        (2, "--html is only for exchange allreduce or sharded", (*there, "--html", tmp_path / "page.html")),
        (2, "do not divide into 3 shards", (*there, "--ranks", "3")),
        (2, "--bandwidth-factor: expected a number", (*there, "--bandwidth-factor", "1e-7")),
        (2, 'policy "ddp"', (*there, "--policy", "ddp")),
        (3, "key", ("--service", service.url, "--api-key", "pace_wrong")),
    ):
        refused = pace("what-if", graph, *arguments)
        assert (refused.returncode, refused.stdout) == (code, ""), refused.stderr
        assert words in refused.stderr
        assert refused.stderr.count("\n") == 1


@ON_SQLITE
def test_submit_takes_graphs(service: Caller, tmp_path: Path) -> None:
    """It prints what `pace optimize` prints, and writes a schedule that holds."""
    graph, output = tmp_path / "graph.json", tmp_path / "schedule.json"
    graph.write_bytes(GRAPH.to_json())
    asked = ("submit", graph, "--service", service.url, "--api-key", service.token)
    done = pace(*asked, "-o", output)
    assert done.returncode == 0, done.stderr
    assert done.stdout == pace("optimize", graph).stdout
    assert check(GRAPH, load_schedule(output)) == []
    printed = pace(*asked, "--memory-gb", "1", "--json")
    assert printed.stdout.encode() == optimize(GRAPH, Options(memory_bytes=10**9)).to_json()
    long_name, decomposed = tmp_path / "long.json", tmp_path / "decomposed.json"
    for path, name in ((long_name, "x" * 201), (decomposed, "re\u0301seau")):
        path.write_bytes(load_profile(PROFILE).model_copy(update={"name": name}).to_json())
    assert pace("submit", decomposed, *asked[2:]).returncode == 0
    for code, words, arguments in (
        (2, "--job is for profiles", (*asked, "--job", "train")),
        (2, "--memory-gb 0: give a positive", (*asked, "--memory-gb", "0")),
        (2, "--memory-gb inf: give a positive", (*asked, "--memory-gb", "inf")),
        (2, "a memory budget of 1 bytes is too small", (*asked, "--memory-gb", "1e-9")),
        (2, "--memory-gb is for graphs", ("submit", PROFILE, *asked[2:], "--memory-gb", "1")),
        (2, "pace: --job: expected 1 to 200 characters", ("submit", PROFILE, *asked[2:], "--job", "x" * 201)),
        (2, "its name cannot be that of a job: give --job", ("submit", long_name, *asked[2:])),
        (3, "(give --api-key, or set PACE_API_KEY)", asked[:4]),
    ):
        refused = pace(*arguments)
        assert (refused.returncode, refused.stdout) == (code, ""), refused.stderr
        assert words in refused.stderr
        assert refused.stderr.count("\n") == 1
