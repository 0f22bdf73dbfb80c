"""All kinds of questions, and what processes are asked to call: to read one, and to answer it.

A kind is a module beside this one that has a ``KIND``, or part of a pack: nothing is listed here.
"""

import importlib
import pkgutil
from itertools import chain
from pathlib import Path

from pace.api.errors import ExecutorMismatch
from pace.api.questions.kind import Question, QuestionKind, ReadLimits, Tell
from pace.api.questions.reading import read_document
from pace.gc_pause import paused_gc
from pace.packs import parts


def _found() -> dict[str, QuestionKind]:
    modules = (
        importlib.import_module(f"{__package__}.{each.name}")
        for each in pkgutil.iter_modules([str(Path(__file__).parent)])
        if f"{__package__}.{each.name}" != __name__
    )
    kinds: list[QuestionKind] = [module.KIND for module in modules if hasattr(module, "KIND")]
    kinds += chain.from_iterable(parts("questions"))
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: (kind.long, kind.name))}


# By name; the kind that is not long comes first.
KINDS = _found()


# The collector rests until what was read is gone: it would look at every object of it, to find nothing.
@paused_gc()
def read_question(body: bytes, gzipped: bool, limits: ReadLimits, kind: str) -> Question:
    """Parse and validate the body of a request of a kind.

    Raises
    ------
    InvalidProfile, InvalidSteps, InvalidOptions, InvalidRequest, ContentTooLarge
        With the validator's message.
    """
    asked = KINDS[kind]
    return asked.read(read_document(body, gzipped, limits.max_bytes, asked.request, asked.parts), limits)


def _tell_nobody(num_done: int) -> None:
    del num_done


def answer_question(kind: str, document: bytes, options: str, tell: Tell = _tell_nobody) -> bytes:
    """Return the answer's JSON for a stored input; `tell` is told now and then how many steps are done.

    Raises
    ------
    ExecutorMismatch
        If the kind is of a pack that the service has, and this machine has not.
    """
    if kind not in KINDS:
        raise ExecutorMismatch(
            f'a Dask worker lacks the pack for "{kind}" tasks: install the service\'s packs there'
        )
    return KINDS[kind].answer(document, options, tell)


def answer_csv(kind: str, document: bytes) -> bytes:
    """Return a stored answer as CSV."""
    write = KINDS[kind].csv
    assert write is not None
    return write(document)
