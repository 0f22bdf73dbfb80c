"""How much of the workers' time each tenant had lately, by which tenants take turns."""

import time
from collections.abc import Callable

from pace.api.fairness.tenants import Tenants

_HALF_LIFE_S = 300.0
_FORGOTTEN_S = 1e-3


class TaskShares:
    """Seconds of work for each tenant, over its weight; what is long past counts less and less.

    A tenant of weight 3 gets three times the time of one of weight 1 while both want more. Who was idle has
    no claim on the time that it left to others. Each service process counts what it did itself.

    Parameters
    ----------
    now
        A clock, in seconds.
    """

    def __init__(self, tenants: Tenants, now: Callable[[], float] = time.monotonic) -> None:
        self._tenants = tenants
        self._now = now
        self._used: dict[str, tuple[float, float]] = {}

    def charge(self, tenant: str, seconds: float) -> None:
        """Count work that was done for a tenant."""
        self._used[tenant] = (self._seconds(tenant) + seconds, self._now())
        if len(self._used) > 10_000:
            self._used = {
                name: used for name, used in self._used.items() if self._seconds(name) > _FORGOTTEN_S
            }

    def used(self, tenant: str) -> float:
        """Return a tenant's seconds over its weight: who has the fewest is next."""
        return self._seconds(tenant) / self._tenants.weight(tenant)

    def _seconds(self, tenant: str) -> float:
        seconds, at_s = self._used.get(tenant, (0.0, 0.0))
        return seconds * 0.5 ** ((self._now() - at_s) / _HALF_LIFE_S) if seconds else 0.0
