"""Starts a service whose database may not be available yet."""

import asyncio
from collections.abc import Callable

import tenacity
from sqlalchemy.exc import InterfaceError, OperationalError

from pace.api.storage.database import Database

_LONGEST_PAUSE_S = 5.0


async def when_it_answers(
    database: Database, work: Callable[[], None], missing: Callable[[BaseException, float], None]
) -> None:
    """Call a function that needs the database, in a thread, as soon as the database answers.

    Parameters
    ----------
    missing
        Called after every failed attempt with the error and the seconds until the next one.

    Raises
    ------
    OperationalError
        If a SQLite file cannot be opened; waiting would not help.
    """

    def note(state: tenacity.RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        assert error is not None
        assert state.next_action is not None
        missing(error, state.next_action.sleep)

    away = tenacity.retry_if_exception_type((OperationalError, InterfaceError))
    async for attempt in tenacity.AsyncRetrying(
        retry=tenacity.retry_never if database.is_sqlite else away,
        wait=tenacity.wait_exponential(multiplier=0.5, max=_LONGEST_PAUSE_S),
        before_sleep=note,
        reraise=True,
    ):
        with attempt:
            await asyncio.to_thread(work)
