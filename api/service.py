"""Starts and stops the parts of one service process in order."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import structlog
from sqlalchemy.exc import OperationalError

from pace.api.access import AccessControl
from pace.api.errors import QuotaExceeded, Refused, StorageTimeout
from pace.api.fairness.body_limits import BodyLimits
from pace.api.fairness.fair_queue import FairQueue
from pace.api.logs import brief
from pace.api.metrics import Metrics
from pace.api.problems import is_foreseen
from pace.api.questions.kind import Question, ReadLimits, ReceivedProfile
from pace.api.settings import ObjectLocation, Settings
from pace.api.storage.database import Database, when_it_answers
from pace.api.storage.documents import DocumentPlaces
from pace.api.storage.job_list import JobList
from pace.api.storage.keys import KeyRing
from pace.api.storage.migrations import upgrade
from pace.api.storage.objects import H, ObjectStore
from pace.api.storage.questions import QuestionStore
from pace.api.storage.quota import StorageQuota
from pace.api.storage.resources import ResourceStore
from pace.api.storage.retention import prune, vacuum
from pace.api.storage.threads import DatabaseThreads
from pace.api.tasks.dispatcher import Dispatcher
from pace.api.tasks.queue import QueueCounts, TaskQueue
from pace.api.tasks.state import Submitted, TaskStatus
from pace.api.tasks.watches import Watches
from pace.api.tasks.worker_pools import NUM_COMPUTERS, WorkerPools
from pace.api.tracing import Spans
from pace.api.webhooks import Webhooks
from pace.api.workers.body_reader import BodyReader
from pace.client.documents import ProfileSummary
from pace.errors import PaceError

if TYPE_CHECKING:
    from pace.api.oidc import OidcIssuer

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# Requests that are put into the database at once: SQLite has one writing transaction at a time anyway.
_NUM_ACCEPTED_SQLITE, _NUM_ACCEPTED = 1, 8
_MOST_ACCEPTING = 4000
_UPKEEP_EVERY_S = 3600.0
# After a failure, such as a deadlock or a database that is away.
_UPKEEP_AGAIN_S = 60.0
# Seconds that a start waits for the database before it continues without.
_FIRST_TRY_S = 10.0
_SPARE_THREADS = 32
_LAST_NOTICES_S = 5.0
# Part of the drain after which waiting requests are answered with 202.
_RELEASED = 0.8


class Service:
    """Database, worker processes and dispatcher of one service process."""

    def __init__(self, settings: Settings, metrics: Metrics, spans: Spans) -> None:
        self.settings = settings
        self.metrics = metrics
        self.spans = spans
        self.database = Database(settings.parsed_database_url)
        self.database_threads = DatabaseThreads(
            settings.database_timeout_s, metrics.observe_database, opened=False
        )
        tenants = settings.tenants
        quota = StorageQuota(tenants)
        self.store = ResourceStore(self.database, quota)
        self.documents = DocumentPlaces(
            self.database,
            _objects(settings),
            2 * settings.objects_timeout_s,
            metrics.observe_objects,
        )
        self.questions = QuestionStore(self.database)
        self.jobs = JobList(self.database)
        self.keys = KeyRing(self.database)
        self.access = AccessControl(
            self.keys if settings.needs_keys else None,
            settings.rate_limit,
            self.database_threads,
            issuer=_issuer(settings),
            failure_limit=settings.login_failures,
            observe=metrics.tenants.count_request,
        )
        self.webhooks = Webhooks(
            settings.webhook_url, settings.webhook_secret.get_secret_value(), metrics.count_webhook
        )
        self.tasks = TaskQueue(
            self.database,
            max_queued=settings.max_queued,
            tenants=tenants,
            lease_s=settings.lease_s,
            max_attempts=settings.max_attempts,
            quota=quota,
        )
        self.pools = WorkerPools(settings, metrics)
        self._turns = FairQueue(
            "computations",
            NUM_COMPUTERS,
            settings.max_computing,
            tenants.weight,
            metrics.turn_observer("computation"),
        )
        limits = ReadLimits(
            max_bytes=settings.max_decoded_bytes,
            max_ops=settings.max_ops,
            max_gradients=settings.max_gradients,
            max_cells=settings.max_cells,
        )
        self.body_limits = BodyLimits(settings.max_bodies_bytes, tenants)
        self.body_reader = BodyReader(
            self.pools.readers,
            limits,
            max_waiting=settings.max_reading,
            timeout_s=settings.read_timeout_s,
            memory_bytes=settings.answer_cache_bytes,
            weight=tenants.weight,
            observe=metrics.turn_observer("body"),
        )
        self.dispatcher = Dispatcher(
            self.tasks,
            self.pools.executors,
            metrics=metrics,
            spans=spans,
            timeout_s=settings.solve_timeout_s,
            lease_s=settings.lease_s,
            watches=Watches(self.tasks, self.database_threads),
            documents=self.documents,
            webhooks=self.webhooks,
        )
        self._accept_turns = FairQueue(
            "requests",
            _NUM_ACCEPTED_SQLITE if self.database.is_sqlite else _NUM_ACCEPTED,
            _MOST_ACCEPTING,
            tenants.weight,
            metrics.turn_observer("acceptance"),
        )
        self._drained_at: float | None = None
        self._accepting: dict[tuple[str | None, ...], asyncio.Task[Submitted]] = {}
        self._chores: list[asyncio.Task[None]] = []
        self._database_tried = asyncio.Event()
        # Why this service can never work; the server then ends.
        self.failure: Exception | None = None
        self.queue_counts = QueueCounts(self.tasks, self.database_threads, metrics)
        metrics.gauge(
            "pace_tasks_running", "Tasks that this service process runs", lambda: self.dispatcher.num_running
        )
        metrics.gauge(
            "pace_database_waiting",
            "Database calls that run or wait for a thread",
            lambda: self.database_threads.num_waiting,
        )

    async def start(self) -> None:
        """Migrate the database and claim tasks as soon as it answers.

        Raises
        ------
        OtherSchema, OtherEncoding, OperationalError
            If the service cannot work with this database.
        """
        if not self.settings.needs_keys:
            log.warning(
                "auth-disabled", reason="listening on loopback only; PACE_AUTH=required turns them on"
            )
        # Enough threads that others remain if all that tasks use hang.
        num_threads = _SPARE_THREADS + self.dispatcher.places.most_running
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(num_threads))
        preparing = asyncio.create_task(self._prepare_database())
        tried = asyncio.create_task(self._database_tried.wait())
        await asyncio.wait({preparing, tried}, timeout=_FIRST_TRY_S, return_when=asyncio.FIRST_COMPLETED)
        tried.cancel()
        if preparing.done():
            preparing.result()
        self.pools.start_with_service()
        self._chores += [preparing, asyncio.create_task(self.metrics.watch_event_loop())]

    async def _prepare_database(self) -> None:
        """Migrate the database as soon as it answers, then start to use it."""
        try:
            await when_it_answers(self.database, partial(upgrade, self.database), self._note_missing_database)
        except Exception as error:
            self.failure = error
            said = log.error if isinstance(error, PaceError | OperationalError) else log.exception
            said("not-started", reason=brief(error))
            raise
        if self._database_tried.is_set():
            log.info("database-ready")
        self.database_threads.open()
        self.dispatcher.start()
        if self.documents.has_objects:
            self._chores.append(asyncio.create_task(_hourly("swept", "sweep-failed", self._sweep)))
        if self.settings.retention_days:
            self._chores.append(asyncio.create_task(_hourly("pruned", "prune-failed", self._prune)))

    def _note_missing_database(self, error: BaseException, retry_in_s: float) -> None:
        log.warning("database-not-ready", error=brief(error), retry_in_s=round(retry_in_s, 1))
        self._database_tried.set()

    def begin_stopping(self) -> None:
        """Claim no more tasks; before the drain ends, answer the requests that wait for a task."""
        if self._drained_at is None:
            loop = asyncio.get_running_loop()
            self._drained_at = loop.time() + self.settings.drain_s
            self.dispatcher.stop_claiming()
            loop.call_later(_RELEASED * self.settings.drain_s, self.dispatcher.watches.release)

    async def stop(self) -> None:
        """Drain, then end the worker processes and close the database."""
        self.begin_stopping()
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        assert self._drained_at is not None
        await self.dispatcher.stop(max(0.0, self._drained_at - asyncio.get_running_loop().time()))
        await self.webhooks.close(_LAST_NOTICES_S)
        await self.pools.close()
        self.database_threads.close()
        self.documents.close()
        self.database.close()

    async def in_database(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a method of a store in a thread; raises StorageTimeout if the database does not answer."""
        return await self.database_threads.run(function, *arguments, **named)

    async def read(self, function: Callable[P, H | None], *arguments: P.args, **named: P.kwargs) -> H | None:
        """Call a method of a store as ``in_database`` does; return what it found with its document."""
        found = await self.in_database(function, *arguments, **named)
        return None if found is None else await self.documents.whole(found)

    async def put_profile(self, tenant: str, received: ReceivedProfile) -> ProfileSummary:
        """Store a profile and return its summary."""
        placed = await self.documents.move(tenant, received, self.database_threads)
        assert placed is not None
        try:
            return await self.in_database(self.store.put_profile, tenant, placed)
        except QuotaExceeded:
            await self.documents.discard(placed)
            raise

    def _prune(self) -> dict[str, int]:
        before = datetime.now(UTC) - timedelta(days=self.settings.retention_days)
        num_pruned = prune(self.database, before)
        vacuum(self.database)
        return {"results": num_pruned}

    def _sweep(self) -> dict[str, int]:
        grace = timedelta(seconds=self.settings.objects_grace_s)
        return {"objects": self.documents.sweep(grace)}

    async def submit(self, tenant: str, question: Question) -> Submitted:
        """Accept a question. Equal questions that arrive meanwhile are accepted in the same transaction."""
        key = (tenant, *question.identity)
        accepting = self._accepting.get(key)
        if accepting is None:
            accepting = asyncio.create_task(self._accept(tenant, question))
            self._accepting[key] = accepting
            accepting.add_done_callback(lambda done: self._accepted(key, done))
        # If the database hangs, the caller gets an error; a question that is accepted in the end is still
        # answered.
        try:
            async with asyncio.timeout(self.database_threads.timeout_s):
                return await asyncio.shield(accepting)
        except TimeoutError:
            raise StorageTimeout("the database did not accept the request in time; send it again") from None

    def _accepted(self, key: tuple[str | None, ...], done: asyncio.Task[Submitted]) -> None:
        del self._accepting[key]
        if not done.cancelled():
            done.exception()  # retrieved, or asyncio would log it

    async def _accept(self, tenant: str, question: Question) -> Submitted:
        placed = await self.documents.move(tenant, question.input, self.database_threads)
        if placed is not question.input:
            question = replace(question, input=placed)
        try:
            async with self._accept_turns.turn(tenant):
                submitted = await self._queue(tenant, question)
        except Refused:
            # The question was refused before anything was stored.
            await self.documents.discard(placed)
            raise
        if submitted.result is None or submitted.result.object_key is None:
            return submitted
        return replace(submitted, result=await self.documents.whole(submitted.result))

    async def _queue(self, tenant: str, question: Question) -> Submitted:
        with self.dispatcher.places.keep(question.kind) as place:
            self.dispatcher.places.work_ahead(place, tenant, question)
            submitted = await self.database_threads.run_to_the_end(
                self.tasks.submit,
                tenant,
                question,
                claim=place.free,
                small_only=place.small_only,
                request_id=structlog.contextvars.get_contextvars().get("request_id"),
            )
            if submitted.task_id is not None:
                self.spans.remember(submitted.task_id)
            if submitted.claimed is not None:
                ahead, place.ahead = place.ahead, None
                self.dispatcher.begin(submitted.claimed, ahead)
            else:
                # Also without a new task, because another question may have been denied the place that this
                # one held.
                self.dispatcher.notify(question.kind)
        return submitted

    async def cancel(self, tenant: str, task_id: str) -> TaskStatus | None:
        """Cancel a task; return its status afterwards, or None if there is no such task."""
        status = await self.in_database(self.tasks.cancel, tenant, task_id)
        if status is not None and status.state == "cancelled":
            self.dispatcher.cancel(task_id)
            self.dispatcher.watches.refresh(tenant, task_id)
        return status

    async def compute(self, function: Callable[..., bytes], *arguments: Any, tenant: str) -> bytes:
        """Run a function of ``pace.api.workers`` without a task; tenants share the processes fairly."""
        async with self._turns.turn(tenant):
            result: bytes = await self.pools.computers.run(
                function, *arguments, timeout_s=self.settings.solve_timeout_s, attempts=3
            )
        return result


async def _hourly(event: str, failed_event: str, work: Callable[[], dict[str, int]]) -> None:
    while True:
        pause_s = _UPKEEP_EVERY_S
        try:
            log.info(event, **await asyncio.to_thread(work))
        except Exception as error:
            said = log.error if is_foreseen(error) else log.exception
            said(failed_event, error=brief(error))
            pause_s = _UPKEEP_AGAIN_S
        await asyncio.sleep(pause_s)


def _objects(settings: Settings) -> ObjectStore | None:
    if not settings.objects:
        return None
    return ObjectStore(
        ObjectLocation.of(settings.objects, settings.objects_endpoint),
        timeout_s=settings.objects_timeout_s,
        min_bytes=settings.objects_min_bytes,
    )


def _issuer(settings: Settings) -> "OidcIssuer | None":
    if not settings.oidc_issuer:
        return None
    from pace.api.oidc import OidcIssuer

    return OidcIssuer(
        settings.oidc_issuer,
        settings.oidc_audience,
        tenant_claim=settings.oidc_tenant_claim,
        scopes_claim=settings.oidc_scopes_claim,
        scope_prefix=settings.oidc_scope_prefix,
    )
