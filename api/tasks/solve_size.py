"""Decides which solves are small: they take milliseconds, and one solver is reserved for them.

Defined twice, for values and for rows: the queue must skip large solves without reading them.
"""

from sqlalchemy import ColumnElement, exists

from pace.api.storage.questions import ABOUT_PROFILE
from pace.api.storage.records import ProfileRecord, QuestionRecord, TaskRecord
from pace.documents.options import Options

# About 50 ms of one core for layers in a chain.
MOST_OPS = 10_000
MOST_GRADIENTS = 1000

# As in the canonical JSON of options.
_SHORT_SEARCH = (f'"search_calls":{Options().search_calls},', '"oracle":"jackson"')


def is_small(num_ops: int, num_gradients: int, options: str) -> bool:
    """Whether a solve of a profile of this size with these options is small.

    Parameters
    ----------
    options
        Their canonical JSON.
    """
    return (
        num_ops <= MOST_OPS
        and num_gradients <= MOST_GRADIENTS
        and all(part in options for part in _SHORT_SEARCH)
    )


def is_small_solve() -> ColumnElement[bool]:
    """Return the same as a condition on a task; false for one whose profile was deleted."""
    of_small_profile = exists().where(
        QuestionRecord.id == TaskRecord.result_id,
        ABOUT_PROFILE,
        ProfileRecord.num_ops <= MOST_OPS,
        ProfileRecord.num_gradients <= MOST_GRADIENTS,
    )
    condition: ColumnElement[bool] = of_small_profile
    for part in _SHORT_SEARCH:
        condition &= TaskRecord.options.contains(part, autoescape=True)
    return condition
