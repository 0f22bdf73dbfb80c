"""The page of an order check: a lane for each rank of a circle, and nothing that could run."""

import json
import re

from pace import OrderReport, check_order, parse_job_program
from pace.view.order_page import order_page


def report_of(num_ranks: int, name: str = "sum") -> OrderReport:
    """Return a report of ranks, each of which waits in a group with the next one."""
    groups = [
        {"name": f"g{rank}", "communicators": [[rank, (rank + 1) % num_ranks]]} for rank in range(num_ranks)
    ]
    calls = [
        {"op": "all-reduce", "group": f"g{rank}", "name": name, "wait": "thread"} for rank in range(num_ranks)
    ]
    programs = [
        {"ranks": [rank], "threads": [{"operations": [calls[rank], calls[rank - 1]]}]}
        for rank in range(num_ranks)
    ]
    job = {"name": "ring <job>", "groups": groups, "programs": programs}
    return check_order(parse_job_program(json.dumps(job)))


def test_a_circle_is_drawn_with_a_lane_for_each_rank() -> None:
    """Each rank waits for the next lane's, and the last for the first."""
    report = report_of(5)
    (finding,) = report.findings
    waits = finding.waits
    assert [wait.rank for wait in waits] == list(finding.ranks)
    assert [wait.waits_for for wait in waits] == [*finding.ranks[1:], finding.ranks[0]]
    page = order_page(report)
    assert len(re.findall('class="wait"', page)) == len(re.findall('class="arrow"', page)) == 5
    assert "ring &lt;job&gt; can hang" in page
    assert "Not proved:" in page


def test_names_of_operations_cannot_become_markup() -> None:
    """A long name is cut in the drawing; all of it is in the title and the text."""
    name = "</title><script>alert(1)</script>" * 4
    page = order_page(report_of(2, name))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 8


def test_a_proof_has_no_drawing() -> None:
    """Only the verdict and what was checked."""
    job = {"groups": [], "programs": [{"ranks": [0], "threads": []}]}
    page = order_page(check_order(parse_job_program(json.dumps(job))))
    assert "job cannot hang: 1 rank, 0 operations" in page
    assert "<svg" not in page
