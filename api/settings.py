"""The service's settings. The environment is read here and nowhere else in the service."""

import difflib
import importlib.util
import os
from dataclasses import replace
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from limits import parse
from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from pace.api.fairness.tenants import TenantLimits, Tenants, read_entries
from pace.api.object_location import ObjectLocation
from pace.errors import InvalidOptions

Count = Annotated[int, Field(ge=1)]
Bytes = Annotated[int, Field(ge=1)]
Duration = Annotated[float, Field(gt=0, allow_inf_nan=False)]

MIB = 2**20


def telemetry_wanted() -> bool:
    """Whether OpenTelemetry's variables turn traces on."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return any(os.environ.get(name) for name in endpoints)


def load_settings(**given: object) -> "Settings":
    """Return settings from the arguments and, for the rest, from the environment.

    Raises
    ------
    InvalidOptions
        If a setting has no valid value, or a variable's name is nearly that of a setting.
    """
    fields = list(Settings.model_fields)
    for name in unknown_settings():
        likely = difflib.get_close_matches(name.removeprefix("PACE_").lower(), fields, 1, 0.8)
        if likely:
            raise InvalidOptions(f"{name} is no setting; did you mean PACE_{likely[0].upper()}?")
    try:
        return Settings(**given)  # type: ignore[arg-type]  # pydantic checks
    except ValidationError as error:
        raise InvalidOptions("\n".join(map(_explain, error.errors(include_url=False)))) from None


def unknown_settings() -> list[str]:
    """Return the variables named ``PACE_...`` that are not settings; some are for training jobs."""
    known = {f"PACE_{name.upper()}" for name in Settings.model_fields}
    return sorted(name for name in os.environ if name.startswith("PACE_") and name not in known)


def _explain(fault: Any) -> str:
    name = str(fault["loc"][0]) if fault["loc"] else ""
    # A database's URL may hold a password.
    shown = "" if name == "database_url" else f" (got {fault['input']!r})"
    return f"PACE_{name.upper()}: {fault['msg'].removeprefix('Value error, ')}{shown}"


class Settings(BaseSettings):
    """Settings of the service; each field is read from the variable ``PACE_`` + its name in upper case.

    Attributes
    ----------
    host, port
        Address and port to listen on; port 0 takes a free one, which the log names.
    database_url
        SQLAlchemy URL. SQLite file or PostgreSQL.
    database_timeout_s
        A request that waits longer for the database is answered 503.
    objects, objects_endpoint
        Object storage for documents of at least `objects_min_bytes`: "s3://BUCKET/PREFIX", and the server's
        URL if it is not Amazon's; empty for none.
    objects_timeout_s
        Seconds to connect to object storage, and between two parts of its answer.
    objects_grace_s
        Seconds after which an object that no row names is deleted.
    auth
        "required": every request needs an API key. "auto": the same, except on loopback, where all requests
        belong to the tenant "default".
    login_failures
        Largest rate of invalid keys or tokens from one address; empty for no limit.
    audit
        "writes": the audit log has all changes. "all": also reads and refused callers.
    oidc_issuer, oidc_audience
        Tokens of this OpenID Connect issuer for this audience are valid besides API keys; empty for none.
    oidc_tenant_claim, oidc_scopes_claim, oidc_scope_prefix
        Claims with a token's tenant and scopes, and the prefix of the service's scopes there.
    rate_limit
        Largest rate of a tenant's requests in this process; empty for no limit.
    trusted_proxies
        Addresses whose X-Forwarded-For header is trusted, separated by commas; empty for none.
    allowed_hosts
        Host names that requests may use, separated by commas; others are answered 421. Without keys, names of
        loopback are always allowed; with keys, empty allows all.
    max_body_bytes, max_decoded_bytes
        Largest request body as sent, and after decompression; larger is answered 413.
    spool_folder
        Folder for bodies of more than 1 MiB while they arrive; empty for the system's temporary folder.
    max_bodies_bytes
        Of bodies that are under way or wait to be parsed, half as many of one tenant; more are answered 429.
    max_bodies_per_tenant
        Bodies of one tenant that are under way or wait to be parsed; more are answered 429.
    max_stored_per_tenant_bytes
        Largest size of one tenant's stored data; 0 for no limit; more is answered 403.
    max_running_per_tenant
        Tasks of one tenant that run at once; the others wait.
    max_cells_per_tenant
        Simulations in what-ifs and predictions of one tenant that wait or run; more are answered 429.
    tenants_file
        JSON file with limits and weights of single tenants, see ``TenantEntry``; empty for none.
    header_timeout_s, body_timeout_s
        Seconds in which the head and the body of a request must arrive; slower ones are answered 408.
    max_ops, max_gradients
        Largest profile; larger is answered 413.
    max_cells
        Most simulations in one what-if; more are answered 413.
    executor
        Where solves and what-ifs run: "processes" of this service, or a Dask cluster by its scheduler's
        address, such as "dask+tcp://scheduler:8786".
    solver_processes
        Solves at the same time, in processes of this service; if more than one, large ones leave one free.
    what_if_processes
        What-ifs at the same time, in processes besides those that solve; also on a Dask cluster.
    solve_timeout_s, solve_memory_bytes
        Limits of one solve or what-if, memory beyond what its process has before; one beyond them is
        killed and reported.
    reader_processes
        Bodies that are parsed at the same time; if more than one, large bodies leave one free.
    read_timeout_s, read_memory_bytes
        Limits of parsing and validating one body.
    max_queued, max_queued_per_tenant
        Tasks that may wait for a worker; more are answered 429.
    max_reading
        Bodies that may wait to be parsed, half as many of one tenant; more are answered 429.
    max_computing
        Timelines, charts and simulations that may wait, half as many of one tenant; more are answered 429.
    answer_cache_bytes
        Memory for answers that were read from storage not long ago, and as much for bodies that were.
    wait_s
        Seconds that a POST waits for its result, unless the client sets ``Prefer``.
    lease_s
        After a service process dies, its running tasks are picked up again within this time.
    max_attempts
        Number of worker deaths after which a task fails.
    drain_s
        Seconds that a stopping service waits for running solves and open requests.
    metrics_tenants
        Number of tenants with metrics under their own names; 0 for none, because /metrics needs no key.
    retention_days
        Schedules that no POST asked for in this time are deleted, and reports and tasks that old; 0
        keeps everything.
    """

    model_config = SettingsConfigDict(env_prefix="PACE_", extra="ignore", frozen=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    database_url: str = "sqlite:///pace.db"
    database_timeout_s: Duration = 10.0
    objects: str = ""
    objects_endpoint: Annotated[str, Field(pattern=r"^(https?://[^/\s]+/?)?$")] = ""
    objects_min_bytes: Bytes = MIB // 4
    objects_timeout_s: Duration = 5.0
    objects_grace_s: Annotated[float, Field(ge=600, allow_inf_nan=False)] = 86_400.0
    auth: Literal["auto", "required"] = "auto"
    login_failures: str = "60/minute"
    audit: Literal["writes", "all"] = "writes"
    oidc_issuer: str = ""
    oidc_audience: Annotated[str, Field(validate_default=True)] = ""
    oidc_tenant_claim: Annotated[str, Field(min_length=1)] = "tenant"
    oidc_scopes_claim: Annotated[str, Field(min_length=1)] = "scope"
    oidc_scope_prefix: str = ""
    rate_limit: str = "60000/minute"
    trusted_proxies: str = ""
    allowed_hosts: str = ""
    max_body_bytes: Bytes = 64 * MIB
    spool_folder: str = ""
    max_bodies_bytes: Bytes = 512 * MIB
    max_bodies_per_tenant: Count = 2000
    max_stored_per_tenant_bytes: Annotated[int, Field(ge=0)] = 10_240 * MIB
    max_running_per_tenant: Count = 100
    max_cells_per_tenant: Count = 200_000
    tenants_file: str = ""
    max_decoded_bytes: Bytes = 256 * MIB
    header_timeout_s: Duration = 10.0
    body_timeout_s: Duration = 60.0
    max_ops: Count = 1_000_000
    max_gradients: Count = 200_000
    max_cells: Count = 50_000
    answer_cache_bytes: Bytes = 64 * MIB
    executor: Annotated[str, Field(pattern=r"^(processes|dask\+(tcp|tls)://[^/\s]+)$")] = "processes"
    solver_processes: Count = Field(default_factory=lambda: max(2, (os.cpu_count() or 2) - 1))
    what_if_processes: Count = 1
    solve_timeout_s: Duration = 300.0
    solve_memory_bytes: Bytes = 4096 * MIB
    reader_processes: Count = 2
    read_timeout_s: Duration = 60.0
    read_memory_bytes: Bytes = 4096 * MIB
    max_queued: Count = 1000
    max_queued_per_tenant: Count = 200
    max_reading: Count = 200
    max_computing: Count = 50
    wait_s: Duration = 300.0
    lease_s: Duration = 10.0
    max_attempts: Count = 3
    drain_s: Duration = 20.0
    metrics_tenants: Annotated[int, Field(ge=0, le=10_000)] = 0
    retention_days: Annotated[float, Field(ge=0, le=100_000)] = 0.0

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str) -> str:
        try:
            backend = make_url(value).get_backend_name()
        except ArgumentError:
            backend = ""
        if backend not in ("sqlite", "postgresql", "postgres"):
            raise ValueError("give sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME")
        return value

    @field_validator("objects")
    @classmethod
    def _known_objects(cls, value: str) -> str:
        if value:
            ObjectLocation.of(value)
            if importlib.util.find_spec("boto3") is None:
                raise ValueError("needs boto3: pip install 'pace-scheduler[s3]'")
        return value

    @field_validator("rate_limit", "login_failures")
    @classmethod
    def _known_rate(cls, value: str) -> str:
        if value:
            try:
                parse(value)
            except ValueError:
                raise ValueError('give a rate such as "6000/minute", or nothing') from None
        return value

    @field_validator("spool_folder")
    @classmethod
    def _writable_folder(cls, value: str) -> str:
        if value and not os.access(value, os.W_OK | os.X_OK):
            raise ValueError("is no folder that can be written to")
        return value

    @field_validator("oidc_issuer")
    @classmethod
    def _safe_issuer(cls, value: str) -> str:
        if value:
            url = urlsplit(value)
            local = url.hostname in ("localhost", "127.0.0.1", "::1")
            if not url.hostname or (url.scheme != "https" and not (url.scheme == "http" and local)):
                raise ValueError("give an https URL")
            if importlib.util.find_spec("jwt") is None:
                raise ValueError("needs PyJWT: pip install 'pace-scheduler[oidc]'")
        return value

    @field_validator("oidc_audience")
    @classmethod
    def _with_audience(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("oidc_issuer") and not value:
            raise ValueError("PACE_OIDC_ISSUER needs it: other services' tokens would be valid here")
        return value

    @field_validator("tenants_file")
    @classmethod
    def _known_tenants(cls, value: str) -> str:
        if value:
            read_entries(Path(value))
        return value

    @cached_property
    def tenants(self) -> Tenants:
        """What each tenant may use; the file is read once."""
        others = TenantLimits(
            max_stored_bytes=self.max_stored_per_tenant_bytes,
            max_bodies=self.max_bodies_per_tenant,
            max_bodies_bytes=max(1, self.max_bodies_bytes // 2),
            max_queued=self.max_queued_per_tenant,
            max_running=self.max_running_per_tenant,
            max_cells=self.max_cells_per_tenant,
        )
        entries = read_entries(Path(self.tenants_file)) if self.tenants_file else {}
        named = {
            name: replace(others, **entry.model_dump(exclude_none=True)) for name, entry in entries.items()
        }
        return Tenants(others, named)

    @property
    def needs_keys(self) -> bool:
        """Whether requests need an API key."""
        if self.auth == "required" or self.host == "localhost":
            return self.auth == "required"
        try:
            return not ip_address(self.host).is_loopback
        except ValueError:
            return True

    @property
    def allowed_host_names(self) -> list[str]:
        """`allowed_hosts`, taken apart."""
        return [name.strip() for name in self.allowed_hosts.split(",") if name.strip()]

    @cached_property
    def parsed_database_url(self) -> URL:
        """The database URL, with the driver that the service installs for PostgreSQL."""
        url = make_url(self.database_url)
        if url.drivername in ("postgresql", "postgres"):
            return url.set(drivername="postgresql+psycopg")
        return url
