"""The parts of one running service, put together and taken apart in order."""

import asyncio

from pace.api.database import Database
from pace.api.dispatch import Dispatcher
from pace.api.problems import queue_full
from pace.api.settings import Settings
from pace.api.store import Store
from pace.api.tasks import Submitted, TaskQueue
from pace.api.work import Received, load_solver, read_submission
from pace.api.workers import WorkerPool


class Service:
    """Database, worker processes and dispatcher of one service process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = Database(settings.parsed_database_url)
        self.store = Store(self.database)
        self.tasks = TaskQueue(
            self.database,
            max_queued=settings.max_queued,
            max_queued_per_tenant=settings.max_queued_per_tenant,
            lease_s=settings.lease_s,
            max_attempts=settings.max_attempts,
        )
        self.readers = WorkerPool("reading the body", 1, settings.read_memory_bytes)
        self.solvers = WorkerPool(
            "the solve", settings.solver_processes, settings.solve_memory_bytes, prepare=load_solver
        )
        self.dispatcher = Dispatcher(
            self.tasks, self.solvers, solve_timeout_s=settings.solve_timeout_s, lease_s=settings.lease_s
        )

    async def start(self) -> None:
        """Create tables, start worker processes, begin to claim tasks."""
        await asyncio.to_thread(self.store.create_tables)
        self.readers.start()
        self.solvers.start()
        self.dispatcher.start()

    async def stop(self) -> None:
        """Drain, then end the worker processes and close the database."""
        await self.dispatcher.stop(self.settings.drain_s)
        await asyncio.to_thread(self.solvers.close)
        await asyncio.to_thread(self.readers.close)
        self.database.close()

    async def submit(self, tenant: str, body: bytes) -> Submitted:
        """Read a schedule request's body and accept it."""
        submitted = await asyncio.to_thread(self.tasks.submit, tenant, await self._read(body))
        if submitted.task_id is not None:
            self.dispatcher.notify()
        return submitted

    async def _read(self, body: bytes) -> Received:
        if self.readers.waiting >= self.settings.max_reading:
            raise queue_full(f"{self.readers.waiting} bodies wait to be read already", retry_after_s=1)
        received: Received = await self.readers.run(
            read_submission, body, timeout_s=self.settings.read_timeout_s
        )
        return received
