"""Rows of embedding tables that steps touch: in profiles, in clustersand in plans."""

import json
from typing import Any

import pytest

from pace.documents.cluster import Cluster, TransferRatio
from pace.documents.profile import Profile, parse_profile
from pace.documents.profile_json import compact_profile
from pace.documents.push_pull import PushPull, TouchedRows
from pace.documents.steps import TouchedBytes
from pace.errors import InvalidProfile

ROWS, ROW_BYTES = 1_000_000, 100
# With its number of 4 bytes, a row has 104 bytes.
TOUCHED = TouchedRows(rows=ROWS, distinct=(1000.0, 1900.0, 2700.0), std=10.0)


def profile(workers: int = 2, touched: TouchedRows | None = TOUCHED, dtype: str = "float32") -> Profile:
    """Return a table of 100 MB and a layer of 1 MB behind it."""
    table: dict[str, Any] = {"touched": touched.model_dump()} if touched is not None else {}
    return Profile.model_validate(
        {
            "name": "recommender",
            "workers": workers,
            "ops": [
                {"name": "bwd/layer", "duration_s": 0.01, "stream": "0"},
                {"name": "bwd/table", "duration_s": 0.01, "stream": "0", "deps": ["bwd/layer"]},
                {"name": "fwd/table", "duration_s": 0.01, "stream": "0", "waits_for": ["table"]},
                {"name": "fwd/layer", "duration_s": 0.01, "stream": "0", "waits_for": ["layer"]},
            ],
            "gradients": [
                {"name": "table", "size_bytes": ROWS * ROW_BYTES, "producer": "bwd/table", "dtype": dtype}
                | table,
                {"name": "layer", "size_bytes": 1_000_000, "producer": "bwd/layer", "dtype": dtype},
            ],
            "allreduce": {"kind": "push-pull", "servers": 1, "worker_bytes_per_s": 1e8},
        }
    )


def test_rows_of_several_workers_by_hand() -> None:
    """Known for three workers; each further one adds as many as the third, up to the whole table."""
    size = ROWS * ROW_BYTES
    assert [TOUCHED.sent_bytes(size, workers) for workers in (1, 2, 3, 5)] == [
        rows * 104 + 44 for rows in (1000, 1900, 2700, 4300)
    ]
    assert TOUCHED.sent_bytes(size, 10_000) == size
    # Of more than half, servers get everything.
    assert TouchedRows(rows=10, distinct=(6.0,)).sent_bytes(1000, 1) == 1000


def test_a_profile_with_touched_rows_is_written_and_read() -> None:
    """It reads back equal, with a digest of its own; without them, nothing of them is written."""
    found, without = profile(), profile(touched=None)
    assert parse_profile(found.to_json()) == parse_profile(compact_profile(found)) == found
    other = profile(touched=TOUCHED.model_copy(update={"std": 1.0}))
    assert len({each.sha256 for each in (found, without, other)}) == 3
    assert found.fingerprint == without.fingerprint
    assert b"touched" not in without.to_json()


@pytest.mark.parametrize(
    ("touched", "named"),
    [
        ({"rows": 10, "distinct": [3.0, 2.0]}, "distinct is 3, 2: expected numbers that never decrease"),
        ({"rows": 10, "distinct": [11.0]}, "11 rows, but the table has 10"),
        ({"rows": 10, "distinct": []}, "distinct"),
        ({"rows": 3, "distinct": [1.0]}, "not 3 rows of equal size"),
    ],
)
def test_rows_that_cannot_be_are_refused(touched: dict[str, Any], named: str) -> None:
    """The message says what is wrong."""
    document = json.loads(profile().to_json())
    document["gradients"][0]["touched"] = touched
    with pytest.raises(InvalidProfile, match=named):
        parse_profile(json.dumps(document))


def test_ratios_of_the_cluster_and_half_precision_stay() -> None:
    """What a user states takes precedence; servers get gradients in half precision whole."""
    exchange = PushPull(servers=1, worker_bytes_per_s=1e8)
    stated = Cluster(name="c", exchange=exchange, ratios=(TransferRatio(gradient="table", push=0.5),))
    assert stated.with_touched_rows(profile()) == stated
    plain = Cluster(name="c", exchange=exchange)
    assert plain.with_touched_rows(profile(dtype="bfloat16")) == plain
    again = plain.with_touched_rows(profile())
    assert again.with_touched_rows(profile()) == again != plain


def test_more_workers_than_are_known_receive_rows_or_everything() -> None:
    """As servers answer: rows while they are less than half of the table."""
    touched = TouchedBytes(by_workers=(30.0, 40.0), whole_bytes=100)
    assert [touched.of(workers) for workers in (1, 2, 3, 9)] == [30, 40, 100, 100]
    assert TouchedBytes(by_workers=(10.0, 15.0), whole_bytes=100).of(3) == 20
    # What was measured stays, whatever it is.
    assert TouchedBytes(by_workers=(30.0, 60.0), whole_bytes=100).of(2) == 60
