"""The service's settings. The environment is read here and nowhere else in the service."""

import difflib
import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from limits import parse
from pydantic import (
    AfterValidator,
    Field,
    GetCoreSchemaHandler,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from pace.api.fairness.tenants import TenantLimits, Tenants, read_entries
from pace.api.webhooks import key_of
from pace.documents.base import limit_numbers, words_of
from pace.errors import InvalidOptions

Count = Annotated[int, Field(ge=1)]
Bytes = Annotated[int, Field(ge=1)]
Duration = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]  # as long as timers can be

MIB = 2**20
# What database URLs may begin with; the first of each is the driver that the service installs.
_SQLITE, _POSTGRESQL = ("sqlite", "sqlite+pysqlite"), ("postgresql+psycopg", "postgresql", "postgres")
_SHORTEST_TOKEN = 20
# What `pace serve` and `pace keys` take as options, too.
_TYPED = ("host", "port", "database_url")
# Values that no message shows; a URL may hold a password.
_SECRET = ("database_url", "metrics_token", "webhook_secret", "webhook_url")


def _known_rate(value: str) -> str:
    try:
        known = not value or parse(value).amount > 0
    except ValueError:
        known = False
    if not known:
        raise ValueError('give a rate such as "6000/minute", or nothing')
    return value


Rate = Annotated[str, AfterValidator(_known_rate)]


def _matching(pattern: str, wanted: str) -> AfterValidator:
    """Return a check that a text matches a pattern; the error says in words what is wanted."""

    def matched(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(f"expected {wanted}")
        return value

    return AfterValidator(matched)


Claim = Annotated[str, _matching(r"(?s).+", "the name of a claim")]
Endpoint = Annotated[
    str, _matching(r"(https?://[^/\s]+/?)?", "https://HOST:PORT, http://HOST:PORT, or nothing")
]
Webhook = Annotated[str, _matching(r"(https?://[^/\s]+(/\S*)?)?", "an https or http URL, or nothing")]
Executor = Annotated[
    str,
    _matching(
        r"processes|dask\+(tcp|tls)://[^/\s]+", "`processes`, or a Dask cluster, `dask+tcp://HOST:PORT`"
    ),
]


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


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
        typed = {name: f"--{name.replace('_', '-')}" for name in _TYPED if name in given}
        faults = error.errors(include_url=False)
        raise InvalidOptions("\n".join(_explain(fault, typed) for fault in faults)) from None


def unknown_settings() -> list[str]:
    """Return the variables named ``PACE_...`` that are not settings; some are for training jobs."""
    known = {f"PACE_{name.upper()}" for name in Settings.model_fields}
    return sorted(name for name in os.environ if name.startswith("PACE_") and name not in known)


def _explain(fault: Any, typed: Mapping[str, str]) -> str:
    message = words_of(fault)
    if not fault["loc"]:
        return message  # about several settings, which it names
    name = str(fault["loc"][0])
    shown = "" if name in _SECRET else f" (got {fault['input']!r})"
    return f"{typed.get(name, f'PACE_{name.upper()}')}: {message}{shown}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLocation:
    """A bucket, the beginning of all keys in it, and the server; an empty endpoint is Amazon's."""

    bucket: str
    prefix: str
    endpoint: str

    @classmethod
    def of(cls, url: str, endpoint: str = "") -> "ObjectLocation":
        """Take ``s3://BUCKET/PREFIX`` apart; raises ValueError for anything else."""
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
            raise ValueError("give s3://BUCKET or s3://BUCKET/PREFIX")
        prefix = parts.path.strip("/")
        return cls(bucket=parts.netloc, prefix=f"{prefix}/" if prefix else "", endpoint=endpoint)


class StorageSettings(BaseSettings):
    """Where the service listens, and where it keeps what it stores."""

    host: str = Field(
        "127.0.0.1", description="Address to listen on; any but a loopback address turns API keys on"
    )
    port: int = Field(8080, ge=0, le=65535, description="Port; 0 takes a free one, which the log names")
    database_url: str = Field(
        "sqlite:///pace.db", description="`sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/NAME`"
    )
    database_timeout_s: Duration = Field(
        10.0, description="Seconds that a request waits for the database; then 503"
    )
    objects: str = Field(
        "",
        description="Object storage for large documents, `s3://BUCKET/PREFIX`; empty: the database keeps "
        "them",
    )
    objects_endpoint: Endpoint = Field("", description="URL of an S3-compatible server; empty: Amazon's")
    objects_min_bytes: Bytes = Field(
        MIB // 4,
        description="Size in bytes from which documents go to object storage (profiles: size when "
        "compressed)",
    )
    objects_timeout_s: Duration = Field(
        5.0,
        description="Seconds to connect to object storage, and between parts of its answer; after two "
        "tries, 503",
    )
    objects_grace_s: float = Field(
        86_400.0,
        ge=600,
        allow_inf_nan=False,
        description="Seconds until an object that nothing refers to is deleted; at least 600",
    )
    retention_days: float = Field(
        0.0,
        ge=0,
        le=100_000,
        description="Days after which unused schedules, reports and tasks are deleted; 0 keeps all",
    )
    spool_folder: str = Field(
        "", description="Folder for bodies over 1 MiB while they arrive; empty: the system's temporary folder"
    )
    answer_cache_bytes: Bytes = Field(
        64 * MIB, description="Bytes of memory for recent answers, and as much for recent bodies"
    )

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str) -> str:
        try:
            url = make_url(value)
            driver, name = url.drivername, url.database
        except (ArgumentError, ValueError):
            driver, name = "", None
        if driver not in _SQLITE and driver not in _POSTGRESQL:
            raise ValueError("give sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME")
        # Each connection would have its own empty database.
        if driver in _SQLITE and (name or ":memory:") == ":memory:":
            raise ValueError("give sqlite:///FILE: the service cannot keep its database in memory")
        # It would be read as a host that begins within the password, and logged.
        if driver in _POSTGRESQL and value.count("@") > 1:
            raise ValueError(
                f"it has {value.count('@')} @: keep the one before the host, and write @ as %40, / as %2F "
                "and % as %25 in the user's name and the password"
            )
        return value

    @field_validator("objects")
    @classmethod
    def _known_objects(cls, value: str) -> str:
        if value:
            ObjectLocation.of(value)
            if importlib.util.find_spec("boto3") is None:
                raise ValueError("needs boto3: pip install 'pace-scheduler[s3]'")
        return value

    @field_validator("spool_folder")
    @classmethod
    def _writable_folder(cls, value: str) -> str:
        if value and not os.access(value, os.W_OK | os.X_OK):
            raise ValueError("expected a folder that the service can write to")
        return value


class AccessSettings(BaseSettings):
    """Who may send requests."""

    auth: Literal["auto", "required"] = Field(
        "auto",
        description="`required`: every request needs an API key; `auto`: requests on loopback need none. "
        "Behind a proxy on the same host, set `required`",
    )
    login_failures: Rate = Field(
        "60/minute",
        description="Rate of wrong keys or tokens from one address; beyond it, only keys that were valid "
        "before are let in; empty: no limit",
    )
    audit: Literal["writes", "all"] = Field(
        "writes", description="`writes`: the audit log has all changes; `all`: also reads and refusals"
    )
    oidc_issuer: str = Field(
        "", description="OpenID Connect issuer whose tokens are valid beside API keys; empty: none"
    )
    oidc_audience: str = Field(
        "", validate_default=True, description="Audience (`aud`) that tokens must have; needed with an issuer"
    )
    oidc_tenant_claim: Claim = Field(
        "tenant", description="Claim that names the tenant; dots lead into nested claims"
    )
    oidc_scopes_claim: Claim = Field(
        "scope", description="Claim with the scopes: a list, or a text with spaces"
    )
    oidc_scope_prefix: str = Field("", description="Prefix of PACE's scopes in tokens, such as `pace:`")
    trusted_proxies: str = Field(
        "", description="Addresses, separated by commas, whose `X-Forwarded-For` is trusted"
    )
    allowed_hosts: str = Field(
        "",
        description="Host names, separated by commas, that requests may use; others get 421. Without "
        "keys, loopback's names are always allowed; with keys, empty allows all",
    )
    tenants_file: str = Field(
        "", description="JSON file with weights and limits of single tenants; empty: none"
    )
    metrics_tenants: int = Field(
        0,
        ge=0,
        le=10_000,
        description='Number of tenants with metrics under their names; the rest are "other"; 0: no '
        "metrics by tenant",
    )
    metrics_token: SecretStr = Field(
        SecretStr(""),
        description="Bearer token of those to whom `/metrics` shows the tenants, 20 characters or more; with "
        "keys, metrics by tenant need it",
    )

    @field_validator("oidc_issuer")
    @classmethod
    def _safe_issuer(cls, value: str) -> str:
        if value:
            url = urlsplit(value)
            local = url.hostname in ("localhost", "127.0.0.1", "::1")
            if not url.hostname or (url.scheme != "https" and not (url.scheme == "http" and local)):
                raise ValueError("expected an https URL")
            if importlib.util.find_spec("jwt") is None:
                raise ValueError("needs PyJWT: pip install 'pace-scheduler[oidc]'")
        return value

    @field_validator("metrics_token")
    @classmethod
    def _long_token(cls, value: SecretStr) -> SecretStr:
        if 0 < len(value.get_secret_value()) < _SHORTEST_TOKEN:
            raise ValueError(f"expected {_SHORTEST_TOKEN} characters or more")
        return value

    @field_validator("oidc_audience")
    @classmethod
    def _with_audience(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("oidc_issuer") and not value:
            raise ValueError(
                "PACE_OIDC_ISSUER needs an audience: without it, other services' tokens would be valid"
            )
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _known_addresses(cls, value: str) -> str:
        for address in map(str.strip, value.split(",")):
            if address not in ("", "*"):
                try:
                    ip_network(address)
                except ValueError as error:
                    raise ValueError(
                        f'{error}: give addresses, networks such as 10.0.0.0/8, or "*"'
                    ) from None
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _names_of_hosts(cls, value: str) -> str:
        for name in map(str.strip, value.split(",")):
            # Requests are compared by the host's name alone, so none would be let in.
            if name and not re.fullmatch(r"[^\s/:@?#*\[\]]+", name) and not _is_address(name):
                raise ValueError(f'"{name}" is no host name: give names without scheme, port, path and *')
        return value

    @field_validator("tenants_file")
    @classmethod
    def _known_tenants(cls, value: str) -> str:
        if value:
            read_entries(Path(value))
        return value


class WorkSettings(BaseSettings):
    """Where and how tasks run."""

    executor: Executor = Field(
        "processes",
        description="Where tasks run: `processes` of the service, or a Dask cluster, "
        "`dask+tcp://SCHEDULER:8786`",
    )
    start_workers: Literal["when-needed", "at-start"] = Field(
        "when-needed",
        description="When worker processes start. `when-needed`: with the first request other than a probe; "
        "`at-start`: with the service, which is ready once they are",
    )
    solver_processes: Count = Field(
        default_factory=lambda: max(2, (os.cpu_count() or 2) - 1),
        description="Number of solves at the same time; large ones leave one process free",
    )
    what_if_processes: Count = Field(
        1, description="Number of what-ifs, predictions and other long tasks at the same time"
    )
    reader_processes: Count = Field(
        2, description="Number of bodies that are parsed at the same time; large ones leave one process free"
    )
    wait_s: Duration = Field(
        300.0, description="Seconds that a POST waits for its result before it answers 202"
    )
    lease_s: Duration = Field(
        10.0, description="Seconds until others take over the tasks of a service process that died"
    )
    max_attempts: Count = Field(3, description="Number of worker deaths after which a task is given up")
    drain_s: Duration = Field(
        20.0, description="Seconds that a stopping service waits for requests and solves to end"
    )
    webhook_url: Webhook = Field(
        "",
        description="URL that is told of ended tasks and jobs that drift; empty: none",
    )
    webhook_secret: SecretStr = Field(
        SecretStr(""),
        validate_default=True,
        description="Secret that signs notices, `whsec_` and base64; needed with `PACE_WEBHOOK_URL`",
    )

    @field_validator("webhook_url")
    @classmethod
    def _with_client(cls, value: str) -> str:
        if value:
            if importlib.util.find_spec("httpx") is None:
                raise ValueError("needs httpx: pip install 'pace-scheduler[client]'")
            url = urlsplit(value)  # raises ValueError, as does its port
            if not url.hostname or url.port == 0:
                raise ValueError("expected a URL with a host")
        return value

    @field_validator("webhook_secret")
    @classmethod
    def _with_secret(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        if value.get_secret_value() or info.data.get("webhook_url"):
            key_of(value.get_secret_value())
        return value


class LimitSettings(BaseSettings):
    """What a request, a tenant and the service process may use, in the order in which a request meets it."""

    header_timeout_s: Duration = Field(
        10.0, description="Seconds for the head of a request; then 408 `timeout`"
    )
    body_timeout_s: Duration = Field(
        60.0, description="Seconds for the body of a request; then 408 `timeout`"
    )
    answer_timeout_s: Duration = Field(
        30.0,
        description="Close the connection of a client that reads less than 64 KiB of its answer, or less "
        "than the rest of it, in this many seconds",
    )
    rate_limit: Rate = Field(
        "60000/minute",
        description="Rate of a tenant's requests in this process; beyond: 429 `rate-limited`; empty: no "
        "limit",
    )
    max_bodies_per_tenant: Count = Field(
        2000, description="Number of a tenant's bodies in flight in this process; beyond: 429 `queue-full`"
    )
    max_bodies_bytes: Bytes = Field(
        512 * MIB,
        description="Bytes of bodies in flight in this process, of requests and of large answers, half for "
        "one tenant; beyond: 429 `queue-full`",
    )
    max_body_bytes: Bytes = Field(64 * MIB, description="Bytes of one body as sent; beyond: 413 `too-large`")
    max_decoded_bytes: Bytes = Field(
        256 * MIB, description="Bytes of one body after gzip; beyond: 413 `too-large`"
    )
    max_reading: Count = Field(
        200,
        description="Number of bodies that wait to be parsed in this process, half for one tenant; beyond: "
        "429 `queue-full`",
    )
    read_timeout_s: Duration = Field(
        60.0,
        description="Seconds to parse one body. CPU time is limited too: 10 s, and 10 s for each MiB sent. "
        "Beyond either: 422 `limit-exceeded`",
    )
    read_memory_bytes: Bytes = Field(
        4096 * MIB, description="Bytes of memory to parse one body; beyond: 422 `limit-exceeded`"
    )
    max_ops: Count = Field(1_000_000, description="Number of ops in one profile; beyond: 413 `too-large`")
    max_gradients: Count = Field(
        200_000, description="Number of gradients in one profile; beyond: 413 `too-large`"
    )
    max_cells: Count = Field(
        50_000, description="Number of simulations in one what-if or prediction; beyond: 413 `too-large`"
    )
    max_cells_per_tenant: Count = Field(
        200_000, description="Number of a tenant's simulations that wait or run; beyond: 429 `queue-full`"
    )
    max_stored_per_tenant_bytes: int = Field(
        10_240 * MIB, ge=0, description="Stored bytes of a tenant; beyond: 403 `quota-exceeded`; 0: no limit"
    )
    max_queued: Count = Field(
        1000, description="Number of waiting tasks of all tenants; beyond: 429 `queue-full`"
    )
    max_queued_per_tenant: Count = Field(
        200, description="Number of waiting tasks of a tenant; beyond: 429 `queue-full`"
    )
    max_running_per_tenant: Count = Field(
        100, description="Number of running tasks of a tenant; further tasks wait"
    )
    solve_timeout_s: Duration = Field(300.0, description="Seconds of one task; beyond: 422 `limit-exceeded`")
    solve_memory_bytes: Bytes = Field(
        4096 * MIB,
        description="Bytes of memory that one task may use, in addition to its idle process; beyond: 422 "
        "`limit-exceeded`",
    )
    max_computing: Count = Field(
        50,
        description="Number of timelines, charts and simulations that wait in this process, half for one "
        "tenant; "
        "beyond: 429 `queue-full`",
    )


class Settings(LimitSettings, WorkSettings, AccessSettings, StorageSettings):
    """Settings of the service; each field is read from the variable ``PACE_`` + its name in upper case."""

    model_config = SettingsConfigDict(env_prefix="PACE_", extra="ignore", frozen=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Return what the fields take; an error about a number names all its limits."""
        schema = handler(source)
        limit_numbers(schema, cls)
        return schema

    @model_validator(mode="after")
    def _shows_no_tenants(self) -> "Settings":
        if self.metrics_tenants and self.needs_keys and not self.metrics_token.get_secret_value():
            raise ValueError(
                "PACE_METRICS_TENANTS needs PACE_METRICS_TOKEN, or /metrics would show tenants' names to all"
            )
        return self

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
        return url.set(drivername=_POSTGRESQL[0]) if url.drivername in _POSTGRESQL else url
