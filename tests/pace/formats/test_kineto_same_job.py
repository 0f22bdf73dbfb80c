"""Traces of two jobs that look alike: refused, or answered with a doubt in one line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pace.cli.main import app
from pace.errors import FormatError
from pace.formats.import_report import import_warnings
from pace.formats.kineto import read_kineto
from tests.pace.formats.job_kinds import (
    ddp_events,
    document_of,
    hybrid_events,
    one_bucket_events,
    other_gradients_events,
)
from tests.pace.formats.traces import Event, kineto_document, write_json

SINCE_1970_NS = 1_700_000_000 * 10**9


def _write(folder: Path, *documents: Event) -> list[Path]:
    return [write_json(folder / f"{place}.json", document) for place, document in enumerate(documents)]


def _renamed(events: list[Event], old: str, new: str) -> list[Event]:
    return [event | {"name": str(event["name"]).replace(old, new)} for event in events]


def _groups(*sizes: int) -> Event:
    told = [
        {"pg_name": str(place), "pg_desc": f"group {place}", "pg_size": n} for place, n in enumerate(sizes)
    ]
    info = {"backend": "gloo", "rank": len(sizes) - 1, "world_size": 2, "pg_config": told}
    return kineto_document(ddp_events(), distributedInfo=info)


def test_two_jobs_with_as_many_bytes_are_refused(tmp_path: Path) -> None:
    """Both have three gradients of 2,040 bytes in the same two buckets; two of them differ."""
    other = other_gradients_events([110], [100], [300])
    paths = _write(tmp_path, document_of(ddp_events()), document_of(other, rank=1))
    reason = r"another job than .*0\.json: 2 of 3 gradients differ, such as \[100\] of float32 and \[10\]"
    with pytest.raises(FormatError, match=reason):
        read_kineto(paths)


def test_two_jobs_with_gradients_of_equal_bytes_are_refused(tmp_path: Path) -> None:
    """Only shapes tell them apart: 10 x 20 and 20 x 10."""
    one, other = (other_gradients_events([10], weight, [300]) for weight in ([10, 20], [20, 10]))
    paths = _write(tmp_path, document_of(one), document_of(other, rank=1))
    with pytest.raises(FormatError, match=r"1 of 3 gradients differ, such as \[20, 10\] .* and \[10, 20\]"):
        read_kineto(paths)


def test_jobs_of_two_backends_are_refused(tmp_path: Path) -> None:
    """One over Gloo, one over NCCL."""
    paths = _write(tmp_path, document_of(ddp_events()), document_of(ddp_events(), rank=1, backend="nccl"))
    with pytest.raises(FormatError, match=r"another job than .*: backend nccl and gloo"):
        read_kineto(paths)


def test_one_recording_passed_twice_is_refused(tmp_path: Path) -> None:
    """A trace that does not say its rank, and a copy of it."""
    silent = kineto_document(ddp_events(), distributedInfo={"world_size": 2})
    with pytest.raises(FormatError, match=r"is the same recording as .*0\.json"):
        read_kineto(_write(tmp_path, silent, silent))


def test_ranks_of_one_job_raise_no_doubt(tmp_path: Path) -> None:
    """With process groups, and times that are half a minute apart."""
    documents = [
        document_of(
            hybrid_events(), workers=4, rank=rank, baseTimeNanoseconds=SINCE_1970_NS + rank * 30 * 10**9
        )
        for rank in range(2)
    ]
    assert read_kineto(_write(tmp_path, *documents)).metadata["ranks_doubt"] is None


@pytest.mark.parametrize(
    ("documents", "doubt"),
    [
        (
            lambda: [_groups(2), _groups(2, 2)],
            "process groups 1 x group 1 of 2 ranks and none",
        ),
        (
            lambda: [
                document_of(ddp_events()),
                document_of(_renamed(ddp_events(), "ConvolutionBackward0", "MmBackward0"), rank=1),
            ],
            "gradients of 1 x MmBackward0 and 1 x ConvolutionBackward0",
        ),
        (
            lambda: [document_of(ddp_events()), document_of(one_bucket_events(), rank=1)],
            "1 all-reduces a step of 2,040 to 2,040 bytes and 2 all-reduces a step of 840 to 1,200 bytes",
        ),
        (
            lambda: [
                document_of(ddp_events()),
                document_of(_renamed(ddp_events(), "ProfilerStep#", "ProfilerStep#7"), rank=1),
            ],
            "steps 70 to 72 and 0 to 2",
        ),
        (
            lambda: [
                document_of(ddp_events(), rank=rank, baseTimeNanoseconds=SINCE_1970_NS + rank * 7200 * 10**9)
                for rank in range(2)
            ],
            "recorded 2.0 hours apart",
        ),
    ],
)
def test_traces_that_may_be_of_two_jobs_are_doubted(
    tmp_path: Path, documents: Callable[[], list[Event]], doubt: str
) -> None:
    """One line above the advice, in the answer and its JSON."""
    paths = _write(tmp_path, *documents())
    line = f"rank 1 may be of another job than rank 0: {doubt}"
    assert line in list(import_warnings(read_kineto(paths)))
    answer = CliRunner().invoke(app, ["headroom", *map(str, paths)])
    assert answer.exit_code == 0, answer.output
    assert f"warning: {line}" in answer.stdout.splitlines()
