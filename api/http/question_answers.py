"""Keeps answers to questions in memory."""

import asyncio
import math

from pace.api.http.answers import AnswerCache, PreparedAnswer, question_answer
from pace.api.questions.kind import QuestionKind
from pace.api.service import Service
from pace.api.storage.questions import StoredAnswer

_TTL_S = 2.0
_LARGE_BYTES = 2**20


class QuestionAnswers:
    """A cache of answers, because thousands of workers may ask for the same schedule."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._cache = AnswerCache(service.settings.answer_cache_bytes, ttl_s=_TTL_S)

    async def get(self, tenant: str, kind: QuestionKind, question_id: str) -> PreparedAnswer | None:
        """Return the answer to a question, or None when there is none."""
        answer = self.in_memory(tenant, kind, question_id)
        if answer is not None:
            return answer
        self._service.metrics.cache_misses.inc()
        stored = await self._service.read(self._service.questions.get, tenant, kind, question_id)
        return None if stored is None else await self.keep(tenant, kind, stored)

    def in_memory(
        self, tenant: str, kind: QuestionKind, question_id: str, most_bytes: float = math.inf
    ) -> PreparedAnswer | None:
        """Return an answer that was read recently, and has at most so many bytes."""
        answer = self._cache.get(tenant, _name(kind, question_id))
        if answer is None or len(answer.body) > most_bytes:
            return None
        self._service.metrics.cache_hits.inc()
        return answer

    async def keep(self, tenant: str, kind: QuestionKind, stored: StoredAnswer) -> PreparedAnswer:
        """Prepare a stored answer and keep it."""
        name = _name(kind, stored.id)
        answer = self._cache.get(tenant, name)
        if answer is None:
            if len(stored.document) < _LARGE_BYTES:
                answer = question_answer(kind, stored)
            else:
                answer = await asyncio.to_thread(question_answer, kind, stored)
            answer = self._cache.put(tenant, name, answer)
        return answer

    def drop(self, tenant: str, kind: QuestionKind, question_id: str) -> None:
        """Drop the answer to a deleted question."""
        self._cache.drop(tenant, _name(kind, question_id))


def _name(kind: QuestionKind, question_id: str) -> str:
    # The kind is part of the name, so that no kind finds another's answer.
    return f"{kind.name}/{question_id}"
