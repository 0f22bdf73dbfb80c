"""How many tasks wait, as metrics."""

import asyncio
import math
from collections import Counter

from pace.api.metrics import Metrics
from pace.api.questions.all_kinds import KINDS
from pace.api.storage.threads import DatabaseThreads
from pace.api.tasks.queue import TaskQueue

_TIMEOUT_S = 1.0


class QueueCounts:
    """The tasks that wait in the database, of all service processes; NaN while it does not answer."""

    def __init__(self, tasks: TaskQueue, threads: DatabaseThreads, metrics: Metrics) -> None:
        self._tasks = tasks
        self._threads = threads
        self._metrics = metrics
        self._by_kind: dict[str, float] = {}
        self._num_queued = math.nan
        metrics.gauge(
            "pace_tasks_queued",
            "Queued tasks of all tenants; NaN while the database does not answer",
            lambda: self._num_queued,
        )
        metrics.family(
            "pace_kind_queued", "Queued tasks of all tenants, by kind", "kind", lambda: self._by_kind
        )

    async def refresh(self) -> None:
        """Count again; the metrics can be read also if that takes too long."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                live = await self._threads.run(self._tasks.count_live)
            by_kind: dict[str, float] = dict.fromkeys(KINDS, 0.0)
            by_tenant = Counter[tuple[str, str]]()
            for (tenant, kind, state), count in live.items():
                by_tenant[tenant, state] += count
                if state == "queued":
                    by_kind[kind] = by_kind.get(kind, 0.0) + count
            self._num_queued, self._by_kind = sum(by_kind.values()), by_kind
            self._metrics.tenants.set_tasks(by_tenant)
        except Exception:
            # Metrics matter most when something else fails.
            self._num_queued, self._by_kind = math.nan, dict.fromkeys(KINDS, math.nan)
