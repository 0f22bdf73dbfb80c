"""Several backward passes in one step of a trace without times: of micro-batches, or of steps without marks.

Nothing tells the ops of the second forward pass from those of the backward pass around it, and each gradient
would be there twice.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from pace.errors import FormatError
from pace.formats.execution_trace import TracedTensor
from pace.formats.kineto_records import BACKWARD

_FUNCTION_SCOPE, _BACKWARD_SCOPE = 0, 1


def refuse_repeated_passes(
    path: str | Path,
    ran: Iterable[tuple[str, int | None, int | None]],
    gradients: Sequence[TracedTensor],
) -> None:
    """Refuse a step that accumulated the same gradients more than once.

    Parameters
    ----------
    ran
        Name, scope and sequence number of each op from the first backward op on.

    Raises
    ------
    FormatError
        If an op was differentiated that ran after the backward pass had begun, and the gradients repeat.
    """
    made: set[int] = set()
    again = False
    for name, scope, sequence in ran:
        if sequence is None:
            continue
        if name.startswith(BACKWARD) or scope == _BACKWARD_SCOPE:
            again = again or sequence in made
        elif scope == _FUNCTION_SCOPE:
            made.add(sequence)
    times = _repeats(gradients) if again else 1
    if times > 1:
        raise FormatError(
            path,
            f"a step has {times} backward passes over the same {len(gradients) // times} gradients: record "
            "steps of one micro-batch, and call profiler.step() after each",
        )


def _repeats(gradients: Sequence[TracedTensor]) -> int:
    """Return how many times a series of gradients comes, as long a series as there is."""
    for times in range(2, len(gradients) + 1):
        length, rest = divmod(len(gradients), times)
        if not rest and list(gradients) == list(gradients[:length]) * times:
            return times
    return 1
