"""Several service processes on one database, and databases that go away."""

import contextlib
import json
import os
import socket
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from pace.api.logs import brief
from pace.api.problems import problem_of
from pace.api.settings import Settings
from pace.api.storage.database import Database
from pace.api.storage.migrations import upgrade
from tests.api.postgresql import PostgresqlServer, find_postgresql
from tests.api.process import ServiceProcess, serve_in_vain
from tests.api.profiles import layered_profile

pytestmark = pytest.mark.races_with_machine(
    reason="a service must renew its hold on a task before it counts as dead"
)

ASYNC = {"Prefer": "respond-async"}


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresqlServer]:
    """Start a PostgreSQL server that nobody else uses."""
    programs = find_postgresql()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with PostgresqlServer(programs) as server:
        yield server


@pytest.fixture
def frail(own_server: PostgresqlServer) -> Iterator[PostgresqlServer]:
    """Return a running server that a test may stop."""
    yield own_server
    own_server.start()


def test_no_statement_stays_prepared_on_a_connection(postgresql: PostgresqlServer) -> None:
    """PgBouncer may run the next transaction on another connection, which does not know the statement."""
    database = Database(Settings(database_url=postgresql.create_database()).parsed_database_url)
    for _ in range(20):
        with database.read() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM tasks").scalar_one()
            prepared = connection.exec_driver_sql("SELECT name FROM pg_prepared_statements").all()
            assert prepared == []
    database.close()


def test_a_dead_services_tasks_are_done_by_another(tmp_path: Path, database_url: str) -> None:
    """Kill -9 one of two services at work: the other finishes all that was accepted, each once."""
    with (
        ServiceProcess(tmp_path, database_url, lease_s=1) as one,
        ServiceProcess(tmp_path, database_url, lease_s=1) as other,
    ):
        accepted = [
            one.http.post(
                "/v1/schedules",
                json={"profile": layered_profile(400, duration_s=number), "options": {"fusion": "paper"}},
                headers=ASYNC,
            )
            for number in range(1, 7)
        ]
        assert {answer.status_code for answer in accepted} <= {201, 202}
        assert len(one.events("solved")) < len(accepted)
        one.kill()
        for answer in accepted:
            path = answer.headers["location"]
            while path.startswith("/v1/tasks/"):
                task = other.http.get(path).raise_for_status().json()
                assert task["state"] != "failed", task
                path = task["location"] or path
                time.sleep(0.05)
            assert other.http.get(path).status_code == 200
        solved = [entry["task"] for log in (one, other) for entry in log.events("solved")]
        assert len(solved) == len(set(solved))


def test_two_services_solve_a_profile_once(tmp_path: Path, database_url: str) -> None:
    """Asked for the same at the same time, one solves and both answer with the same bytes."""
    with (
        ServiceProcess(tmp_path, database_url) as one,
        ServiceProcess(tmp_path, database_url) as other,
        ThreadPoolExecutor(8) as pool,
    ):
        asked = [
            pool.submit((one, other)[number % 2].post_schedule, layered_profile(50)) for number in range(8)
        ]
        answers = [each.result() for each in asked]
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.content for answer in answers}) == 1
        deadline = time.monotonic() + 30
        while not (solved := [*one.events("solved"), *other.events("solved")]):
            assert time.monotonic() < deadline
        assert len(solved) == 1


def test_a_database_that_goes_away_and_comes_back(tmp_path: Path, frail: PostgresqlServer) -> None:
    """While PostgreSQL is down: 503 problems and not ready, but alive; afterwards all is as before."""
    with ServiceProcess(tmp_path, frail.create_database()) as service:
        created = service.post_schedule(layered_profile(5), job="train")
        assert service.http.get("/readyz").status_code == 200
        frail.stop()
        refused = service.post_schedule(layered_profile(6))
        assert refused.status_code == 503
        assert refused.json()["type"] == "urn:pace:problem:storage-unavailable"
        assert "postgresql" not in refused.text.lower()
        unready = service.http.get("/readyz")
        assert (unready.status_code, unready.json()["ready"]) == (503, False)
        assert service.http.get("/healthz").status_code == 200
        assert service.http.get("/metrics").status_code == 200
        frail.start()
        assert service.http.get(created.headers["location"]).content == created.content
        assert service.post_schedule(layered_profile(6)).status_code == 201
        assert service.http.get("/readyz").status_code == 200
        failed = service.events("request-failed", 1)
        assert not any("exception" in entry for entry in service.log())
        assert all(len(json.dumps(entry)) < 1000 for entry in failed)
        assert not any("\n" in entry.get("error", "") for entry in service.log())


def test_a_database_that_can_only_be_read_for_a_while(tmp_path: Path, frail: PostgresqlServer) -> None:
    """As after a failover: reads are answered, writes are told to come again, and results wait."""
    url = frail.create_database()
    with ServiceProcess(tmp_path, url) as service, ThreadPoolExecutor(1) as pool:
        created = service.post_schedule(layered_profile(5))
        _execute(url, _REFUSE)  # from when the task ends, not from when it is accepted
        asked = pool.submit(service.post_schedule, layered_profile(6))
        service.events("result-not-stored", 1)
        _execute(url, "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        refused = service.post_schedule(layered_profile(7))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert service.http.get(created.headers["location"]).content == created.content
        _execute(url, "ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
        _execute(url, "DROP TRIGGER refuse ON solutions")
        assert asked.result().status_code == 201
        assert service.post_schedule(layered_profile(7)).status_code == 201
        assert len(service.events("solved", 3)) == 3
    assert "Traceback" not in service.log_path.read_text()


_REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'only reads' USING ERRCODE = 'read_only_sql_transaction'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON solutions EXECUTE FUNCTION refuse();
"""


def _execute(url: str, *statements: str) -> None:
    options = "-c default_transaction_read_only=off"
    with psycopg.connect(url, autocommit=True, options=options) as connection:
        for statement in statements:
            connection.execute(statement)


def test_a_service_that_starts_before_its_database(tmp_path: Path, frail: PostgresqlServer) -> None:
    """It is not ready, says why in a line, and works as soon as PostgreSQL is there, without tables."""
    url = frail.create_database(bare=True)
    frail.stop()
    with ServiceProcess(tmp_path, url) as service:
        unready = service.http.get("/readyz")
        assert (unready.status_code, unready.json()["database"]) == (503, "does not answer")
        for refused in (service.post_schedule(layered_profile(3)), service.http.get("/v1/jobs")):
            assert refused.status_code == 503
            assert refused.json()["type"] == "urn:pace:problem:storage-unavailable"
            assert refused.headers["retry-after"]
        assert "Connection refused" in service.events("database-not-ready", 1)[0]["error"]
        frail.start()
        service.events("database-ready", 1)
        assert service.post_schedule(layered_profile(3)).status_code == 201
        assert service.http.get("/readyz").status_code == 200
    assert "Traceback" not in service.log_path.read_text()


def test_a_role_without_privileges_is_told_what_it_lacks(tmp_path: Path, frail: PostgresqlServer) -> None:
    """The service waits until they are granted, then and later; requests are told to come again."""
    url = frail.create_database(bare=True)
    _execute(url, "CREATE ROLE weak LOGIN")
    with ServiceProcess(tmp_path, url.replace("pace@", "weak@"), drain_s=0.5) as service:
        assert service.events("database-not-ready", 1)[0]["error"] == "permission denied for schema public"
        assert service.post_schedule(layered_profile(3)).status_code == 503
        assert service.stop() == 0
        service.start()
        _execute(url, "GRANT ALL ON SCHEMA public TO weak")
        service.events("database-ready", 1)
        assert service.post_schedule(layered_profile(3)).status_code == 201
        _execute(url, "REVOKE INSERT ON profiles FROM weak")
        refused = service.http.post("/v1/profiles", json=layered_profile(4))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        _execute(url, "GRANT INSERT ON profiles TO weak")
        assert service.http.post("/v1/profiles", json=layered_profile(4)).status_code == 201
        (said,) = service.events("request-failed", 1)[-1:]
        assert said["error"] == "permission denied for table profiles"
        assert not service.events("release-failed")
    assert "Traceback" not in service.log_path.read_text()


def test_a_transaction_that_postgresql_ends_is_one_that_can_be_tried_again(frail: PostgresqlServer) -> None:
    """It was idle for too long, as that of a process that was stopped for a while."""
    url = f"{frail.create_database()}?options=-cidle_in_transaction_session_timeout%3D500ms"
    database = Database(Settings(database_url=url).parsed_database_url)

    def be_idle() -> None:
        with database.write() as connection:
            connection.exec_driver_sql("SELECT 1")
            time.sleep(1.5)
            connection.exec_driver_sql("SELECT 1")

    with pytest.raises(OperationalError) as ended:
        be_idle()
    assert problem_of(ended.value).status == 503
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1
    database.close()


def test_a_host_that_vanished_is_noticed_on_both_sides(frail: PostgresqlServer) -> None:
    """No thread waits for hours for a server that is gone, and no lock of a process that is gone stays."""
    url = frail.create_database()
    for options, keepalive_s in (("", 10), ("?keepalives_idle=7", 7)):
        database = Database(Settings(database_url=url + options).parsed_database_url)
        with database.read() as connection:
            shown = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar_one()
            assert shown == "1min"
            driver: Any = connection.connection.driver_connection
            with socket.socket(fileno=os.dup(driver.fileno())) as used:
                assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == keepalive_s
                assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 25_000
        database.close()


def test_an_unknown_option_of_the_url_is_named(frail: PostgresqlServer) -> None:
    """As a wrong password is: the service is not ready, and the log says why."""
    database = Database(Settings(database_url=f"{frail.url('postgres')}?color=blue").parsed_database_url)
    with pytest.raises(OperationalError) as refused:
        upgrade(database)
    assert brief(refused.value) == 'invalid connection option "color"'


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_hold_all_names_ends_the_start_in_a_line(
    tmp_path: Path, frail: PostgresqlServer, encoding: str
) -> None:
    """Names of other alphabets would be refused later, one by one."""
    locale = "LOCALE 'C' LOCALE_PROVIDER libc"
    _execute(
        frail.url("postgres"), f"CREATE DATABASE {encoding} ENCODING '{encoding}' {locale} TEMPLATE template0"
    )
    code, said = serve_in_vain(tmp_path, "--database-url", frail.url(encoding.lower()))
    assert code == 3
    (line,) = [line for line in said.splitlines() if '"not-started"' in line]
    assert f"the database has the encoding {encoding}" in json.loads(line)["reason"]
    assert "createdb --encoding=UTF8 --template=template0" in json.loads(line)["reason"]
    assert "Traceback" not in said


def test_a_database_that_turns_out_to_be_too_new_ends_the_service(
    tmp_path: Path, frail: PostgresqlServer
) -> None:
    """Also if it was waited for: with a status and a line that says why."""
    url = frail.create_database()
    _make_too_new(url)
    frail.stop()
    with ServiceProcess(tmp_path, url, drain_s=0.5) as service:
        service.events("database-not-ready", 1)
        frail.start()
        assert service.wait() == 3
    assert len(service.events("not-started", 1)) == 1
    assert "Traceback" not in service.log_path.read_text()


def _make_too_new(database_url: str) -> None:
    database = Database(Settings(database_url=database_url).parsed_database_url)
    upgrade(database)
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0900'")
    database.close()


def test_a_service_that_never_gets_its_database_can_be_stopped(tmp_path: Path) -> None:
    """Nothing of it waits any longer."""
    with ServiceProcess(tmp_path, "postgresql://pace@127.0.0.1:1/pace", drain_s=0.5) as service:
        assert service.stop() == 0


def test_a_database_that_can_never_be_used_ends_the_start_in_a_line(
    tmp_path: Path, database_url: str
) -> None:
    """A file in a folder that is not there or of another kind, and the schema of a newer version."""
    _make_too_new(database_url)
    Path(tmp_path, "dump").write_bytes(b"PGDMP" + bytes(5000))
    for url, reason in (
        (database_url, "of a newer version"),
        (
            f"sqlite:///{tmp_path}/nowhere/pace.db",
            f"unable to open database file: {tmp_path}/nowhere/pace.db",
        ),
        (f"sqlite:///{tmp_path}/dump", "/dump is no SQLite database: file is not a database"),
    ):
        code, said = serve_in_vain(tmp_path, "--database-url", url)
        assert code == 3
        (line,) = [line for line in said.splitlines() if '"not-started"' in line]
        assert reason in json.loads(line)["reason"]
        assert "Traceback" not in said


def test_a_backup_beside_the_log_of_a_killed_service_is_refused(tmp_path: Path) -> None:
    """SQLite would apply the log to the backup; without the log it is served."""
    backup = tmp_path / "backup"
    with ServiceProcess(tmp_path) as service:
        (file,) = tmp_path.glob("*.db")
        service.post_schedule(layered_profile(3))
        with contextlib.closing(sqlite3.connect(file)) as opened:
            opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            opened.execute(f"VACUUM INTO '{backup}'")
        for layers in range(4, 40):
            assert service.post_schedule(layered_profile(layers)).status_code == 201
        service.kill()
    log = file.with_name(f"{file.name}-wal")
    assert log.stat().st_size
    file.write_bytes(backup.read_bytes())
    code, said = serve_in_vain(tmp_path, "--database-url", f"sqlite:///{file}")
    assert code == 3
    (line,) = [line for line in said.splitlines() if '"not-started"' in line]
    assert f"{file} is damaged" in json.loads(line)["reason"]
    assert f"delete {file}-wal and -shm before" in json.loads(line)["reason"]
    for each in (log, file.with_name(f"{file.name}-shm")):
        each.unlink(missing_ok=True)
    file.write_bytes(backup.read_bytes())
    with ServiceProcess(tmp_path, f"sqlite:///{file}") as service:
        assert service.post_schedule(layered_profile(5)).status_code == 201


@pytest.mark.parametrize("change", ["deleted", "replaced", "log deleted"])
def test_a_database_file_that_is_gone_is_noticed_before_anything_is_promised(
    tmp_path: Path, change: str
) -> None:
    """SQLite would write on into a file without a name; what is put back works on."""
    with ServiceProcess(tmp_path) as service:
        assert service.post_schedule(layered_profile(3)).status_code == 201
        (file,) = tmp_path.glob("*.db")
        aside = tmp_path / "aside"
        moved = file.with_name(f"{file.name}-wal") if change == "log deleted" else file
        moved.rename(aside)
        if change == "replaced":
            moved.write_bytes(aside.read_bytes())
        schedule = {"profile": layered_profile(4)}
        for path, body in (("/v1/schedules", schedule), ("/v1/profiles", layered_profile(5))):
            answer = service.http.post(path, json=body)
            assert answer.status_code == 503
            assert answer.json()["type"] == "urn:pace:problem:storage-unavailable"
            assert "restore the file, or restart the service" in answer.json()["detail"]
        assert service.http.get("/readyz").status_code == 503
        assert moved.exists() == (change == "replaced")
        aside.rename(moved)
        assert service.post_schedule(layered_profile(4)).status_code == 201
        assert service.http.get("/readyz").status_code == 200
        assert len(service.http.get("/v1/profiles").json()["items"]) == 2


def test_a_database_that_hangs(tmp_path: Path, frail: PostgresqlServer) -> None:
    """PostgreSQL that is there and says nothing: reads and writes are told, metrics and health work on."""
    url = frail.create_database()
    with ServiceProcess(tmp_path, url, database_timeout_s=1, lease_s=0.1) as service:
        assert service.http.get("/v1/profiles").status_code == 200
        with frail.hanging(), ThreadPoolExecutor(50) as pool:
            # More than there are threads of any kind.
            reads = list(pool.map(service.http.get, ["/v1/profiles"] * 50))
            assert {answer.status_code for answer in reads} == {503}
            assert reads[0].json()["type"] == "urn:pace:problem:storage-unavailable"
            assert service.post_schedule(layered_profile(3)).status_code == 503
            assert service.http.get("/readyz").json()["database"] == "does not answer"
            assert service.http.get("/healthz").status_code == 200
            assert "pace_tasks_queued NaN" in service.http.get("/metrics").text
        assert service.http.get("/v1/profiles").status_code == 200
        assert service.post_schedule(layered_profile(3)).status_code == 201
        assert service.http.get("/readyz").status_code == 200


def test_a_database_whose_connections_all_hang_is_one_that_does_not_answer(
    frail: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for a connection in vain is tried again: a result that is to be stored is not lost."""
    database = Database(Settings(database_url=frail.create_database()).parsed_database_url)
    monkeypatch.setattr(database.engine.pool, "_timeout", 0.01)
    with contextlib.ExitStack() as taken:
        for _ in range(30):
            taken.enter_context(database.read())
        for begin in (database.read, database.write):
            with pytest.raises(OperationalError) as refused, begin():
                pass
            assert problem_of(refused.value).status == 503
    database.close()


def test_a_hung_database_does_not_keep_a_stopped_service(tmp_path: Path, frail: PostgresqlServer) -> None:
    """It ends soon after its drain, with status 0, though its threads wait for an answer."""
    url = frail.create_database()
    with ServiceProcess(tmp_path, url, drain_s=0.5, database_timeout_s=1) as service, frail.hanging():
        assert service.http.get("/v1/profiles").status_code == 503
        assert service.stop() == 0
