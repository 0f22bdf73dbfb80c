"""The fabric on network namespaces: bounds are kept, and links carry what was planned."""

import json
from pathlib import Path

import pytest

from benchmarks.harness.network.hosts import Link, hosts, why_unavailable
from benchmarks.studies.fabric.chain import measure
from tests.testbed.benchmark_run import run_benchmark

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable())),
]


def test_weights_cross_every_link_once() -> None:
    """Three hosts have the weights; the sender sent them once along the chain, three times alone."""
    with hosts([Link(rate_mbit_s=50.0)] * 4) as made:
        found = measure(made, 500_000, 1, ["chain", "direct"])
    assert found["chain_sent_bytes"]["sender"] == 500_000
    assert sum(found["chain_sent_bytes"].values()) == 3 * 500_000
    assert found["direct_sent_bytes"]["sender"] == 3 * 500_000


@pytest.mark.races_with_machine(
    reason="each contender has two seconds, in which it may finish no round beside other tests"
)
def test_all_contenders_train_over_links_that_change(tmp_path: Path) -> None:
    """Two hosts and 0.2 MB: the fabric keeps its bound, and ring, tree and plain server finish rounds too."""
    found = tmp_path / "cells.json"
    setting = "--networks N2 --compute equal --machines 2 --megabytes 0.2 --seconds 2"
    names = "fabric,fabric-s,patient-4,killed-2000,async,tree,ring"
    run_benchmark(f"fabric {setting} --contenders {names} --json {found}".split(), timeout_s=600)
    contenders = json.loads(found.read_text())[0]["contenders"]
    assert all(each["iteration_s"] is not None for each in contenders.values())
    killed = contenders["killed-2000"]["facts"]
    assert killed["promoted"]
    assert killed["true_norm"] <= 2000
    assert (killed["lost"], killed["twice"], killed["violations"]) == ([], 0, [])
    assert contenders["patient-4"]["facts"]["greatest_lead"] <= 4
    facts = contenders["fabric"]["facts"]
    assert facts["violations"] == []
    assert facts["server_bytes_over_plan"] == pytest.approx(1.0, abs=0.05)
