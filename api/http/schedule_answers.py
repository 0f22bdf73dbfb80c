"""Answers that hold schedules, kept in memory for those who ask next."""

from pace.api.http.answers import AnswerCache, PreparedAnswer, schedule_answer
from pace.api.service import Service
from pace.api.storage.store import StoredSchedule

_TTL_S = 2.0


class ScheduleAnswers:
    """The service's schedules as answers: thousands of workers may ask for the same one."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._cache = AnswerCache(service.settings.answer_cache_bytes, ttl_s=_TTL_S)

    async def get(self, tenant: str, schedule_id: str) -> PreparedAnswer | None:
        """Return the answer that holds a schedule, or None when there is none."""
        answer = self._cache.get(tenant, schedule_id)
        if answer is not None:
            self._service.metrics.cache_hits.inc()
            return answer
        self._service.metrics.cache_misses.inc()
        stored = await self._service.read(self._service.store.get_schedule, tenant, schedule_id)
        return None if stored is None else self.keep(tenant, stored)

    def keep(self, tenant: str, stored: StoredSchedule) -> PreparedAnswer:
        """Make an answer of a stored schedule and keep it."""
        answer = self._cache.get(tenant, stored.id)
        if answer is None:
            answer = schedule_answer(stored)
            self._cache.put(tenant, stored.id, answer)
        return answer

    def drop(self, tenant: str, schedule_id: str) -> None:
        """Drop a deleted schedule's answer."""
        self._cache.drop(tenant, schedule_id)
