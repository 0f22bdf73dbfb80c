"""Job programs from files: the document itself, or one file of another tool for each rank."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pace.documents.order.job_program import JobProgram, load_job_program
from pace.errors import InvalidJobProgram
from pace.order.flight_recorder import is_dump, read_flight_recorder


def read_job_program(
    paths: Sequence[str | Path], *, groups: Mapping[str, Sequence[int]] | None = None
) -> JobProgram:
    """Read a job program from its file, or from files of another tool, one for each rank.

    Parameters
    ----------
    groups
        The ranks of groups, by name, where the files do not say them.

    Raises
    ------
    InvalidJobProgram
        If it is a job program that breaks its own rules, or if there are several of them.
    FormatError
        If a file is none that is known, or is damaged.
    """
    if not paths:
        raise InvalidJobProgram("a job program is needed (got no files)")
    if all(map(is_dump, paths)):
        return read_flight_recorder(paths, groups=groups)
    if len(paths) != 1:
        raise InvalidJobProgram(f"one job program is needed (got {len(paths)} files)")
    return load_job_program(paths[0])
