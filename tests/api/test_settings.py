"""Settings and the command line of the service: what is wrong is said in a line, and nothing is changed."""

import asyncio
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pace.api.http.app import create_app
from pace.api.settings import Settings, load_settings
from pace.api.storage.database import Database
from pace.api.storage.migrations import has_tables, upgrade
from pace.cli.keys import app as keys
from pace.errors import InvalidOptions
from tests.api.process import serve_in_vain


def test_bad_settings_are_named_in_a_line_each(tmp_path: Path) -> None:
    """Not a traceback; the exit status is that of wrong usage, and a password stays secret."""
    wrong = {
        "database_url": "nonsense://me:secret@host/x",
        "login_failures": "0/minute",  # would let nobody in
        "trusted_proxies": "10.0.0.7, 10.42.0.1/16",  # would trust nobody
        "drain_s": "1e12",
        "rate_limit": "often",
        "max_queued": "many",
    }
    code, said = serve_in_vain(tmp_path, **wrong)
    assert code == 2
    names = [line.split(": ")[1] for line in said.splitlines()]
    assert names == [f"PACE_{name.upper()}" for name in wrong]
    assert "'many'" in said
    assert "10.42.0.1/16 has host bits set" in said
    assert "secret" not in said


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_wrong_value_is_told_with_what_was_expected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In PACE's words, whatever the setting is: a number, a word of a few, or text of a form."""
    variable = f"PACE_{name.upper()}"
    for value in ("", "-1", "nan", "1e400", "9" * 30, "no such value"):
        monkeypatch.setenv(variable, value)
        told = ""
        try:
            load_settings()
        except InvalidOptions as error:
            told = str(error)
        assert told.startswith(f"{variable}: ") or not told
        assert told or Settings.model_fields[name].annotation not in (int, float), value
        assert not re.search("[Ii]nput should|String should|unable to parse", told), told


def test_an_error_names_all_limits_of_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever is broken; and all words that a setting may have."""
    for name, value, expected in (
        ("port", "99999", "expected a whole number from 0 to 65,535"),
        ("lease_s", "nan", "expected a number above 0 and at most 1e9"),
        ("max_ops", "1.5", "expected a whole number of at least 1 and below 1e18"),
        ("auth", "maybe", "expected 'auto' or 'required'"),
        ("executor", "dask", "expected `processes`, or a Dask cluster, `dask+tcp://HOST:PORT`"),
    ):
        with monkeypatch.context() as environment:
            environment.setenv(f"PACE_{name.upper()}", value)
            with pytest.raises(InvalidOptions) as caught:
                load_settings()
        assert str(caught.value) == f"PACE_{name.upper()}: {expected} (got {value!r})"


def test_urls_of_databases_that_would_be_misread_are_refused(tmp_path: Path) -> None:
    """A driver that is not installed, a port that is none, and a password that would become a host's name."""
    for url, reason in (
        ("postgresql+asyncpg://me@host/x", "give sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"),
        ("postgresql://me@host:port/x", "give sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"),
        (
            "postgres://me:p@secret/word@host/x",
            "it has 2 @: keep the one before the host, and write @ as %40, / as %2F and % as %25 in the "
            "user's name and the password",
        ),
    ):
        refused = serve_in_vain(tmp_path, database_url=url)
        assert refused == (2, f"pace serve: PACE_DATABASE_URL: {reason}\n")
    for url in ("sqlite://", "sqlite:///", "sqlite:///:memory:"):
        with pytest.raises(InvalidOptions, match="give sqlite:///FILE: the service cannot keep its database"):
            load_settings(database_url=url)
    parsed = Settings(database_url="postgres://me:p%40ss%2Fword@[::1]:5433/x").parsed_database_url
    assert (parsed.password, parsed.host, parsed.port) == ("p@ss/word", "::1", 5433)


def test_allowed_hosts_that_no_request_can_name_are_refused() -> None:
    """The service would start, and refuse every request."""
    for hosts in ("https://pace.example.com", "pace.example.com:8080", "one, *.example.com", "[::1]"):
        with pytest.raises(InvalidOptions, match="is no host name: give names without scheme"):
            load_settings(allowed_hosts=hosts)
    assert load_settings(allowed_hosts="pace.example.com, ::1,").allowed_host_names == [
        "pace.example.com",
        "::1",
    ]


def test_metrics_by_tenant_need_a_token_where_there_are_keys(tmp_path: Path) -> None:
    """Or everyone who reaches /metrics would read who uses the service; a guessable token would not help."""
    named = {"metrics_tenants": "5", "auth": "required"}
    code, said = serve_in_vain(tmp_path, **named)
    assert (code, "PACE_METRICS_TENANTS needs PACE_METRICS_TOKEN" in said, said.count("\n")) == (2, True, 1)
    code, said = serve_in_vain(tmp_path, **named, metrics_token="short")
    assert (code, "PACE_METRICS_TOKEN: expected 20 characters or more" in said) == (2, True), said
    assert "short" not in said


def test_a_name_that_no_host_can_have_is_told_in_a_line(tmp_path: Path) -> None:
    """As an address that is not there."""
    for name in ("a..b", "x" * 64, "no-such-host.invalid"):
        code, said = serve_in_vain(tmp_path, "--host", name)
        assert (code, said.count("\n")) == (3, 1), said
        assert said.startswith(f"pace serve: cannot listen on {name}:0: ")


def test_a_misspelt_setting_is_not_ignored(tmp_path: Path) -> None:
    """The service does not start without the limit that its operator wanted."""
    misspelt = "pace serve: PACE_MAX_QUEUE is no setting; did you mean PACE_MAX_QUEUED?\n"
    assert serve_in_vain(tmp_path, max_queue="10") == (2, misspelt)


def test_keys_of_another_version_are_left_alone(tmp_path: Path) -> None:
    """To list keys creates no file; a schema of another version is refused, and stays as it is."""
    url = f"sqlite:///{tmp_path / 'pace.db'}"
    environment = {"PACE_DATABASE_URL": url}
    listed = CliRunner().invoke(keys, ["list"], env=environment)
    assert (listed.exit_code, listed.stdout) == (1, "")
    assert "holds no keys" in listed.stderr
    assert list(tmp_path.iterdir()) == []
    database = Database(Settings(database_url=url).parsed_database_url)
    upgrade(database)
    created = CliRunner().invoke(keys, ["create", "a key"], env=environment)
    assert created.exit_code == 0, created.output
    assert "a key" in CliRunner().invoke(keys, ["list"], env=environment).stdout
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0000'")
    for command in (["list"], ["create", "another"]):
        refused = CliRunner().invoke(keys, command, env=environment)
        assert (refused.exit_code, refused.stdout) == (3, "")
        assert "the database has schema 0000, this version of PACE has 0001" in refused.stderr
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one() == "0000"
    database.close()


def test_a_new_database_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Others on the machine read neither the file nor what lies beside it; an old file stays as it is."""
    path = tmp_path / "pace.db"
    database = Database(Settings(database_url=f"sqlite:///{path}").parsed_database_url)
    assert not has_tables(database)
    upgrade(database)
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes["pace.db"] == 0o600
    assert set(modes.values()) == {0o600}
    database.close()
    path.chmod(0o640)
    upgrade(database)
    assert path.stat().st_mode & 0o777 == 0o640
    database.close()


def test_the_interface_is_described_without_a_caller(tmp_path: Path) -> None:
    """Building the document would block the event loop for all others; a thread does it after the start."""
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path / 'pace.db'}", solver_processes=1))

    async def start() -> None:
        async with app.router.lifespan_context(app):
            async with asyncio.timeout(60):
                while app.openapi_schema is None:
                    await asyncio.sleep(0.01)

    asyncio.run(start())
