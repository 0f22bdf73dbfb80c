"""Job programs from dumps of PyTorch's flight recorder, one file for each rank, as pickle or JSON.

The recorder keeps the last collectives that a rank enqueued in a ring buffer. It notes neither waits nor
synchronizations, and a dump of a job that hangs ends where the rank stopped, so each program is cut off.
Sends and receives are left out: their order cannot be told once the buffer has overflowed. Groups without
a name, which are made without ``new_group``, are told by the order in which a rank made them.
"""

import io
import json
import math
import pickle
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

from pace.documents.order.job_program import (
    EnqueuedCollective,
    HostThread,
    JobProgram,
    ProcessGroup,
    RankProgram,
)
from pace.errors import FormatError
from pace.formats.reading import open_binary
from pace.order.inputs.job_groups import EQUAL_SIZES, GivenGroups, kind_of

MOST_BYTES = 1 << 30
DEFAULT_NAME = "0"  # of the group of all ranks
_ELEMENT_BYTES = {
    "Double": 8,
    "Long": 8,
    "Float": 4,
    "Int": 4,
    "Half": 2,
    "BFloat16": 2,
    "Short": 2,
    "Char": 1,
    "Byte": 1,
    "Bool": 1,
}
_NOT_THE_USERS = ("/torch/", "typing_extensions.py")


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A collective in a dump: the `number`-th of its group, the `record`-th of its rank."""

    record: int
    number: int
    is_done: bool
    call: EnqueuedCollective


@dataclass(frozen=True, slots=True)
class _Dump:
    """What one rank recorded."""

    path: Path
    ranks_of: dict[str, tuple[int, ...]]
    calls: dict[str, list[_Recorded]]
    backends: dict[str, str]
    is_whole: bool


def is_dump(head: bytes) -> bool:
    """Return whether a file that begins like this is a dump of the flight recorder."""
    if head[:1] == b"\x80":
        return True
    is_trace = b'"traceEvents"' in head or b'"deviceProperties"' in head
    return not is_trace and (b'"pg_config"' in head or (b'"entries"' in head and b'"profiling_name"' in head))


def read_flight_recorder(paths: Sequence[str | Path], *, groups: GivenGroups | None = None) -> JobProgram:
    """Read the dumps of all ranks; the rank is the number at the end of a file's name.

    Parameters
    ----------
    groups
        The communicators of groups, by name, where the dumps do not say them, as those of Gloo.

    Raises
    ------
    FormatError
        If a file is no dump, a rank's dump is missing, or ranks say different things about a group.
    """
    dumps: dict[int, _Dump] = {}
    for path in map(Path, paths):
        rank = _rank_of(path)
        if rank in dumps:
            raise FormatError(
                path, f"rank {rank} is also the rank of {dumps[rank].path}: give one dump for each rank"
            )
        dumps[rank] = _read_dump(path)
    members = _members(dumps, groups or {})
    calls: dict[int, list[_Recorded]] = {rank: [] for rank in dumps}
    for group, ranks in members.items():
        for rank, kept in _aligned(group, {rank: dumps[rank] for rank in ranks}).items():
            calls[rank] += kept
    backend = {group: backend for dump in dumps.values() for group, backend in dump.backends.items()}
    return JobProgram.model_validate(
        {
            "name": "the recorded job",
            "groups": [
                ProcessGroup(
                    name=group,
                    communicators=(ranks,),
                    backend="gloo" if backend.get(group) == "gloo" else "nccl",
                )
                for group, ranks in members.items()
            ],
            "programs": [
                RankProgram(
                    ranks=(rank,),
                    threads=(HostThread(operations=_in_order(calls[rank])),),
                    is_cut_off=True,
                )
                for rank in sorted(dumps)
            ],
        }
    )


def _in_order(calls: list[_Recorded]) -> tuple[EnqueuedCollective, ...]:
    return tuple(call.call for call in sorted(calls, key=attrgetter("record")))


def _rank_of(path: Path) -> int:
    stem = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".pickle").removesuffix(".pkl")
    digits = re.search(r"(\d+)$", stem)
    if digits is None:
        raise FormatError(path, "expected a name that ends with the rank, for example trace_rank_3")
    return int(digits[1])


class _PlainUnpickler(pickle.Unpickler):
    """Reads only what a dump holds: dicts, lists, tuples, numbers and text. Others could run code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it holds a {module}.{name}, which no dump does")


def _read_dump(path: Path) -> _Dump:
    with open_binary(path) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise FormatError(path, f"a dump of more than {MOST_BYTES:,} bytes is not read")
    try:
        is_pickle = data[:1] == b"\x80"
        dump = _PlainUnpickler(io.BytesIO(data)).load() if is_pickle else json.loads(data)
        entries, config = dump["entries"], dump.get("pg_config", {})
        calls: defaultdict[str, list[_Recorded]] = defaultdict(list)
        backends = {}
        for entry in entries:
            if entry["is_p2p"]:
                continue
            group = str(entry["process_group"][0]) or f"unnamed {entry['pg_id']}"
            backends[group] = str(entry["profiling_name"]).partition(":")[0]
            recorded = _recorded(entry, group)
            same = calls[group]
            if same and same[-1].number == recorded.number:  # one launch of several tensors
                recorded = same.pop()
                recorded = replace(recorded, call=recorded.call.model_copy(update={"size_bytes": None}))
            same.append(recorded)
        ranks_of = {
            str(name): tuple(int(rank) for rank in re.findall(r"\d+", str(about["ranks"])))
            for name, about in config.items()
        }
        is_whole = all(int(entry["record_id"]) < len(entries) for entry in entries)
    except (
        AttributeError,
        EOFError,
        IndexError,
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
        pickle.UnpicklingError,
    ) as fault:
        reason = f"{type(fault).__name__}: {fault}"[:200]
        raise FormatError(
            path, f"no dump of PyTorch's flight recorder can be read from it: {reason}"
        ) from None
    return _Dump(
        path, {name: ranks for name, ranks in ranks_of.items() if ranks}, dict(calls), backends, is_whole
    )


def _recorded(entry: dict[str, Any], group: str) -> _Recorded:
    name = str(entry["profiling_name"]).rpartition(":")[2]
    kind = kind_of(name)
    varies = "_v" in name or kind not in EQUAL_SIZES
    sizes = entry["output_sizes"] if kind == "reduce-scatter" else entry["input_sizes"]
    dtypes = entry.get("input_dtypes") or []
    dtype = str(dtypes[0]) if dtypes and len(set(dtypes)) == 1 and kind != "barrier" else None
    size_bytes = None
    if not varies and dtype in _ELEMENT_BYTES:
        size_bytes = _ELEMENT_BYTES[dtype] * sum(math.prod(shape) for shape in sizes)
    frames = [
        f"{frame['filename']}:{frame['line']} in {frame['name']}"
        for frame in entry.get("frames", ())
        if not any(part in frame["filename"] for part in _NOT_THE_USERS)
    ]
    return _Recorded(
        record=int(entry["record_id"]),
        number=int(entry["collective_seq_id"]),
        is_done=entry["state"] == "completed",
        call=EnqueuedCollective(
            op=kind, group=group, name=name or None, size_bytes=size_bytes, dtype=dtype, stack=tuple(frames)
        ),
    )


def _members(dumps: dict[int, _Dump], given: GivenGroups) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each group that is used."""
    members: dict[str, tuple[int, ...]] = {}
    said_by: dict[str, int] = {}
    for rank, dump in sorted(dumps.items()):
        for group, ranks in dump.ranks_of.items():
            if members.setdefault(group, ranks) != ranks:
                other = said_by[group]
                raise FormatError(
                    dump.path,
                    f"group {group} has ranks {ranks}, but {members[group]} in the dump of rank {other}: "
                    "the ranks created their groups in different orders",
                )
            said_by.setdefault(group, rank)
    used = dict.fromkeys(group for _, dump in sorted(dumps.items()) for group in dump.calls)
    for group in used:
        if group in members:
            continue
        # Gloo's dumps do not say who is in a group.
        users = [rank for rank, dump in sorted(dumps.items()) if group in dump.calls]
        idle = dumps.keys() - users
        if group in given:
            members[group] = _only(dumps[users[0]].path, group, given[group])
        elif not idle or group == DEFAULT_NAME:
            members[group] = tuple(sorted(dumps))
        else:
            raise FormatError(
                dumps[users[0]].path,
                f"it does not say which ranks are in group {group}, and rank {min(idle)} did not use it: "
                f"give them, for example --group {group}={','.join(map(str, sorted(dumps)))}",
            )
    for group in used:
        for rank in members[group]:
            if rank not in dumps:
                raise FormatError(
                    next(iter(dumps.values())).path,
                    f"group {group} has rank {rank}, whose dump is missing: give the dumps of all ranks",
                )
        for rank, dump in dumps.items():
            if group in dump.calls and rank not in members[group]:
                raise FormatError(
                    dump.path, f"rank {rank} calls group {group}, whose ranks are {members[group]}"
                )
    return {group: members[group] for group in used}


def _only(path: Path, group: str, given: Sequence[Sequence[int]]) -> tuple[int, ...]:
    if len(given) != 1:
        raise FormatError(path, f"group {group} is one communicator in a dump: give its ranks once")
    return tuple(given[0])


def _aligned(group: str, dumps: dict[int, _Dump]) -> dict[int, list[_Recorded]]:
    """Return what each rank called of a group, from the first that no rank's buffer has lost."""
    first = 0
    for rank, dump in dumps.items():
        calls = dump.calls.get(group, [])
        if calls:
            first = max(first, calls[0].number if not dump.is_whole else 0)
            numbers = [call.number for call in calls]
            if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
                raise FormatError(
                    dump.path, f"collectives of group {group} are not numbered one after another"
                )
        elif not dump.is_whole:
            raise FormatError(
                dump.path,
                f"the dump of rank {rank} is too short: it has none of its calls in group {group}; "
                "record more calls with a larger TORCH_FR_BUFFER_SIZE",
            )
    kept = {
        rank: [call for call in dump.calls.get(group, []) if call.number >= first]
        for rank, dump in dumps.items()
    }
    # What has ended was called by everybody, also by a rank that was dumped a moment earlier.
    until = min(len(calls) for calls in kept.values())
    for rank, calls in kept.items():
        dumped_later = 0
        while until + dumped_later < len(calls) and calls[until + dumped_later].is_done:
            dumped_later += 1
        kept[rank] = calls[:until] + calls[until + dumped_later :]
    return kept
