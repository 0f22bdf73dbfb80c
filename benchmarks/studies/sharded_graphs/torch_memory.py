"""Peak memory of a planned node list as torch's estimator counts it.

The rule of ``torch._inductor.fx_passes.memory_estimator.build_memory_profile`` (torch 2.13): a node allocates
the storages that it is the first to return, and a storage is freed behind the last node that reads it or a
view of it. A collective's input is free once that is issued, and a wait returns a storage of its own. Inputs
and outputs of the program are never freed. Buckets are the nodes that ``fx_passes.bucketing`` puts in the
place of their members.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pace.formats.node_list import COLLECTIVES, is_view

Plan = Sequence[int | list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A node as it runs: what it allocates, by storage, and the storages that it reads."""

    allocates: dict[int, int]
    reads: tuple[int, ...]


def torch_peak_bytes(rows: Sequence[dict[str, Any]], plan: Plan) -> int:
    """Return the peak of a plan, whose buckets are lists of the numbers of their members."""
    inputs = {row["i"] for row in rows if row["op"] in ("placeholder", "get_attr")}
    returned = {dep for row in rows if row["op"] == "output" for dep in row["deps"]}
    storages = _storages(rows, plan)
    steps = list(_steps(rows, plan, storages))
    last = {storage: number for number, step in enumerate(steps) for storage in step.reads}
    for node in (*inputs, *returned):
        last.pop(storages[node], None)
    size = {storage: bytes_ for step in steps for storage, bytes_ in step.allocates.items()}
    memory: int = sum(row["bytes"] for row in rows if row["i"] in inputs)
    peak = memory
    for number, step in enumerate(steps):
        memory += sum(step.allocates.values())
        peak = max(peak, memory)
        memory -= sum(size[storage] for storage in set(step.reads) if last.get(storage) == number)
    return peak


def _storages(rows: Sequence[dict[str, Any]], plan: Plan) -> dict[int, int]:
    """Return the storage of each node's output; the waits of a bucket that shrinks share one."""
    bucket_of = {member: item for item in plan if isinstance(item, list) for member in item}
    kinds = {row["i"]: row["kind"] for row in rows}
    storages: dict[int, int] = {}
    for row in rows:
        first = row["deps"][0] if row["deps"] else None
        if row["kind"] == "wait" and first in bucket_of and kinds[first] != "all_gather_into_tensor":
            storages[row["i"]] = _wait_storage(bucket_of[first])
        elif row["kind"] == "op" and first is not None and is_view(row["target"]):
            storages[row["i"]] = storages[first]
        else:
            storages[row["i"]] = row["i"]
    return storages


def _steps(rows: Sequence[dict[str, Any]], plan: Plan, storages: dict[int, int]) -> Iterator[Step]:
    by_number = {row["i"]: row for row in rows}
    bucket_of = {member: item for item in plan if isinstance(item, list) for member in item}
    waited: set[int] = set()
    for item in plan:
        if isinstance(item, list):
            yield from _issue([by_number[member] for member in item], storages)
            continue
        row = by_number[item]
        bucket = bucket_of.get(row["deps"][0]) if row["kind"] == "wait" and row["deps"] else None
        if bucket is not None:
            if bucket[0] not in waited:
                waited.add(bucket[0])
                yield from _wait([by_number[member] for member in bucket])
            if storages[item] == item:
                yield Step(allocates={item: row["bytes"]}, reads=(_wait_storage(bucket),))
            continue
        fresh = {item: row["bytes"]} if storages[item] == item else {}
        yield Step(allocates=fresh, reads=tuple(storages[dep] for dep in row["deps"]))


def _issue(bucket: Sequence[dict[str, Any]], storages: dict[int, int]) -> Iterator[Step]:
    """Copy the inputs of a bucket into its buffer and issue it; a gather's buffer is its output."""
    assert all(row["kind"] in COLLECTIVES for row in bucket)
    numbers = [row["i"] for row in bucket]
    got = sum(row["bytes"] for row in bucket)
    reads = tuple(storages[dep] for row in bucket for dep in row["deps"])
    if bucket[0]["kind"] == "all_gather_into_tensor":
        yield Step(allocates={_issued_storage(numbers): got}, reads=reads)
        return
    copied = -3 * numbers[0] - 3
    yield Step(allocates={copied: sum(row["in_bytes"] for row in bucket)}, reads=reads)
    yield Step(allocates={_issued_storage(numbers): got}, reads=(copied,))


def _wait(bucket: Sequence[dict[str, Any]]) -> Iterator[Step]:
    numbers = [row["i"] for row in bucket]
    got = sum(row["bytes"] for row in bucket)
    yield Step(allocates={_wait_storage(numbers): got}, reads=(_issued_storage(numbers),))


def _issued_storage(bucket: Sequence[int]) -> int:
    return -3 * bucket[0] - 1


def _wait_storage(bucket: Sequence[int]) -> int:
    return -3 * bucket[0] - 2
