"""Limits of tenants: the same for all, except for those in the operator's file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from pace.documents.base import Document, explain, repeated

Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """The limits of one tenant; docs/reference/settings.md says where each is enforced.

    Attributes
    ----------
    weight
        Weight of the tenant's share, relative to the other tenants with work.
    max_stored_bytes
        Largest size of its profiles, results and their rows; 0 for no limit.
    max_bodies, max_bodies_bytes
        Largest number and size of its bodies that are being received or wait to be parsed, in one service
        process.
    max_queued, max_running
        Largest numbers of its tasks that wait, and that run at once, in all service processes.
    max_cells
        Largest number of simulations in its waiting and running what-ifs and predictions.
    """

    weight: float = 1.0
    max_stored_bytes: int = 0
    max_bodies: int = 2000
    max_bodies_bytes: int = 2**28
    max_queued: int = 200
    max_running: int = 100
    max_cells: int = 200_000


class TenantEntry(Document):
    """A tenant's entry in the file; missing values are those of all tenants."""

    model_config = ConfigDict(strict=True)

    weight: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] | None = Field(
        None,
        description="Weight of its share of readers, solvers, database and event loop; 1 by default",
    )
    max_stored_bytes: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Limit on stored bytes, instead of `PACE_MAX_STORED_PER_TENANT_BYTES`; 0: no limit"
    )
    max_bodies: Count | None = Field(
        None, description="Limit on bodies in flight, instead of `PACE_MAX_BODIES_PER_TENANT`"
    )
    max_bodies_bytes: Count | None = Field(
        None, description="Limit on bytes of bodies in flight, instead of half of `PACE_MAX_BODIES_BYTES`"
    )
    max_queued: Count | None = Field(
        None, description="Limit on waiting tasks, instead of `PACE_MAX_QUEUED_PER_TENANT`"
    )
    max_running: Count | None = Field(
        None, description="Limit on running tasks, instead of `PACE_MAX_RUNNING_PER_TENANT`"
    )
    max_cells: Count | None = Field(
        None,
        description="Limit on simulations that wait or run, instead of `PACE_MAX_CELLS_PER_TENANT`",
    )


@dataclass(frozen=True, slots=True)
class Tenants:
    """The limits of all tenants.

    Parameters
    ----------
    others
        Limits of tenants that are not in `named`.
    named
        Tenants with their own limits.
    """

    others: TenantLimits = TenantLimits()
    named: Mapping[str, TenantLimits] = field(default_factory=dict)

    def limits(self, tenant: str) -> TenantLimits:
        """Return a tenant's limits."""
        return self.named.get(tenant, self.others)

    def weight(self, tenant: str) -> float:
        """Return a tenant's weight."""
        return self.limits(tenant).weight


def read_entries(path: Path) -> dict[str, TenantEntry]:
    """Read a file of tenants: a JSON object from names to limits.

    Raises
    ------
    ValueError
        If the file cannot be read or is not valid; the message says where.
    """
    try:
        content = json.loads(path.read_bytes(), object_pairs_hook=_without_repeated_names)
        return TypeAdapter(dict[str, TenantEntry]).validate_python(content)
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise ValueError(explain(error)) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the file is not JSON: {error}") from None


def _without_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if (twice := repeated(name for name, _ in pairs)) is not None:
        raise ValueError(f'the file has "{twice}" twice in one object: keep one of them')
    return dict(pairs)
