"""Job programs from files: the document itself, or one file of another tool for each rank."""

from collections.abc import Sequence
from pathlib import Path

from pace.documents.order.job_program import JobProgram, load_job_program
from pace.errors import InvalidJobProgram


def read_job_program(paths: Sequence[str | Path]) -> JobProgram:
    """Read a job program from its file, or from files of another tool, one for each rank.

    Raises
    ------
    InvalidJobProgram
        If it is a job program that breaks its own rules, or if there are several of them.
    FormatError
        If a file is none that is known, or is damaged.
    """
    if len(paths) != 1:
        raise InvalidJobProgram(f"one job program is needed (got {len(paths)} files)")
    return load_job_program(paths[0])
