"""The groups of a job that is put together from one file for each rank."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pace.documents.order.job_program import CollectiveKind, HostThread, JobProgram, ProcessGroup, RankProgram
from pace.errors import InvalidJobProgram

GivenGroups = Mapping[str, Sequence[Sequence[int]]]


@dataclass(slots=True, kw_only=True)
class RankFile:
    """What one file says of a rank.

    Attributes
    ----------
    group_sizes
        How many ranks meet in each group that the rank calls; None where the file does not say.
    group_ranks
        Which ranks, where the file says that.
    """

    threads: tuple[HostThread, ...]
    group_sizes: dict[str, int | None] = field(default_factory=dict)
    group_ranks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    is_cut_off: bool = False


def in_order_of_ranks(paths: Sequence[str | Path]) -> list[Path]:
    """Return files by the rank that ``rank`` and a number in their paths tell; as given if some do not."""
    found = [re.findall(r"rank[_-]?(\d+)", str(path)) for path in paths]
    ranks = [int(each[-1]) for each in found if each]
    if len(ranks) < len(paths) or sorted(ranks) != list(range(len(paths))):
        return [Path(path) for path in paths]
    return [Path(path) for _, path in sorted(zip(ranks, map(str, paths), strict=True))]


def job_of(
    name: str,
    files: Mapping[int, RankFile],
    given: GivenGroups,
    backend: Literal["nccl", "gloo"] = "nccl",
) -> JobProgram:
    """Return the job of all ranks; one file stands for all ranks of its largest group.

    Raises
    ------
    InvalidJobProgram
        If the files do not say which ranks are in a group, and `given` does not either.
    """
    if len(files) == 1:
        ((_, only),) = files.items()
        sizes = [size or 2 for size in only.group_sizes.values()]
        ranks = tuple(range(max((*sizes, *(len(ranks) for ranks in only.group_ranks.values())), default=1)))
        # All ranks do the same, so they are one class, whatever ranks share a group.
        groups = [
            ProcessGroup(name=group, communicators=(ranks,), backend=backend) for group in only.group_sizes
        ]
        program = RankProgram(ranks=ranks, threads=only.threads, is_cut_off=only.is_cut_off)
        return JobProgram(name=name, groups=tuple(groups), programs=(program,))
    users: dict[str, list[int]] = {}
    for rank, file in sorted(files.items()):
        for group in file.group_sizes:
            users.setdefault(group, []).append(rank)
    groups = [
        ProcessGroup(name=group, communicators=_communicators(group, calling, files, given), backend=backend)
        for group, calling in users.items()
    ]
    programs = [
        RankProgram(ranks=(rank,), threads=file.threads, is_cut_off=file.is_cut_off)
        for rank, file in sorted(files.items())
    ]
    return JobProgram(name=name, groups=tuple(groups), programs=tuple(programs))


def _communicators(
    group: str, users: Sequence[int], files: Mapping[int, RankFile], given: GivenGroups
) -> tuple[tuple[int, ...], ...]:
    if group in given:
        return tuple(tuple(ranks) for ranks in given[group])
    if all(group in files[rank].group_ranks for rank in users):
        return _named(group, {rank: files[rank].group_ranks[group] for rank in users}, files)
    said = (files[rank].group_sizes[group] for rank in users)
    sizes = sorted({size for size in said if size is not None})
    if len(sizes) > 1:
        raise InvalidJobProgram(f'group "{group}" has {sizes[0]} ranks in one file, {sizes[-1]} in another')
    size = sizes[0] if sizes else None
    if size is not None and size > len(files):
        raise InvalidJobProgram(
            f'group "{group}" has {size} ranks: give the files of all ranks (got {len(files)})'
        )
    if size == len(files) or (size is None and len(users) == len(files)):
        return (tuple(sorted(files)),)
    if size == len(users):
        return (tuple(users),)
    raise InvalidJobProgram(
        f'group "{group}" has {"some" if size is None else size} of {len(files)} ranks, and the files do not '
        f"say which: give them, for example --group {group}=0,1"
    )


def _named(
    group: str, ranks_of: Mapping[int, tuple[int, ...]], files: Iterable[int]
) -> tuple[tuple[int, ...], ...]:
    found = dict.fromkeys(ranks_of.values())
    for ranks in found:
        if missing := [rank for rank in ranks if rank not in files]:
            raise InvalidJobProgram(
                f'group "{group}" has rank {missing[0]}, whose file is missing: give the files of all ranks'
            )
    return tuple(found)


# In whose calls all ranks have equal sizes.
EQUAL_SIZES = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce")
_KINDS: tuple[tuple[str, CollectiveKind], ...] = (
    ("allreducebarrier", "barrier"),
    ("allreduce", "all-reduce"),
    ("allgather", "all-gather"),
    ("reducescatter", "reduce-scatter"),
    ("broadcast", "broadcast"),
    ("alltoall", "all-to-all"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("barrier", "barrier"),
)


def kind_of(name: str) -> CollectiveKind:
    """Return the kind of a collective with this name."""
    plain = name.replace("_", "").lower()
    return next((kind for part, kind in _KINDS if part in plain), "other")
