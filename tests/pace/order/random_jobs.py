"""Small random jobs: a sequence of meetings that all ranks follow, and a few faults in it."""

from random import Random
from typing import Any

from pace.documents.order.job_program import JobProgram

KINDS = ("all-reduce", "all-gather")


def random_job(random: Random) -> JobProgram:
    """Return a job of two or three ranks with up to four meetings; about half of them can hang."""
    num_ranks = random.choice((2, 2, 3))
    groups: list[Any] = []
    for number in range(random.choice((1, 2, 2, 3))):
        ranks = random.sample(range(num_ranks), random.randint(2, num_ranks))
        backend = random.choice(("nccl", "nccl", "gloo"))
        transfers = random.choice(("pair", "group"))
        groups.append(
            {"name": f"g{number}", "communicators": [ranks], "backend": backend, "transfers": transfers}
        )
    threads: dict[int, list[list[dict[str, Any]]]] = {rank: [[]] for rank in range(num_ranks)}
    two_threads = random.random() < 0.2
    if two_threads:
        for rank in threads:
            threads[rank].append([])
    for number in range(random.randint(1, 4 if num_ranks == 2 else 3)):
        group_number = random.randrange(len(groups))
        group = groups[group_number]
        line = group_number % 2 if two_threads and random.random() < 0.95 else 0
        members: Any = group["communicators"][0]
        if random.random() < 0.25:
            _add_transfers(random, threads, group["name"], random.sample(members, 2), line, number)
            continue
        kind = random.choice(KINDS)
        for rank in members:
            call = {"op": kind, "group": group["name"], "name": f"c{number}", "size_bytes": 4, "dtype": "f"}
            call["wait"] = random.choice(("nobody", "nobody", "stream", "thread"))
            call["stream"] = random.choice(("s", "s", "t")) if not two_threads else f"s{line}"
            if random.random() < 0.03:
                call[random.choice(("size_bytes", "dtype"))] = None
            if random.random() < 0.01:
                call["size_bytes"] = 8
            threads[rank][line].append(call)
    for lines in threads.values():
        for line_number, operations in enumerate(lines):
            _disturb(random, operations)
            _add_waits(random, operations, f"s{line_number}" if two_threads else "s")
    programs = [
        {
            "ranks": [rank],
            "threads": [{"name": f"t{number}", "operations": ops} for number, ops in enumerate(lines)],
        }
        for rank, lines in threads.items()
    ]
    return JobProgram.model_validate({"groups": groups, "programs": programs})


def _add_transfers(random: Random, threads: Any, group: str, ends: list[int], line: int, number: int) -> None:
    way = {"group": group, "size_bytes": 4, "name": f"c{number}", "stream": f"s{line}"}
    both = random.random() < 0.5
    batched = both and random.random() < 0.5
    for rank, peer, op in ((ends[0], ends[1], "send"), (ends[1], ends[0], "recv")):
        wait = random.choice(("nobody", "stream", "thread"))
        calls = [{**way, "op": op, "peer": peer, "wait": wait}]
        if both:
            calls.append(
                {
                    **way,
                    "op": "recv" if op == "send" else "send",
                    "peer": peer,
                    "wait": wait,
                    "name": f"d{number}",
                }
            )
        if random.random() < 0.3:
            calls.reverse()
        threads[rank][line].extend([{"op": "batch", "operations": calls}] if batched else calls)


def _disturb(random: Random, operations: list[dict[str, Any]]) -> None:
    if len(operations) > 1 and random.random() < 0.25:
        place = random.randrange(len(operations) - 1)
        operations[place], operations[place + 1] = operations[place + 1], operations[place]
    if operations and random.random() < 0.04:
        del operations[random.randrange(len(operations))]


def _add_waits(random: Random, operations: list[dict[str, Any]], stream: str) -> None:
    for place in range(len(operations), 0, -1):
        if random.random() > 0.3:
            continue
        before = [each for each in operations[:place] if "group" in each]
        match random.randrange(4):
            case 0 if before:
                operations.insert(place, {"op": "wait", "operation": random.choice(before)["name"]})
            case 1 if before:
                named = random.choice(before)["name"]
                operations.insert(place, {"op": "wait", "operation": named, "stream": stream})
            case 2 if before:
                operations.insert(place, {"op": "wait", "group": random.choice(before)["group"]})
            case 3:
                operations.insert(place, {"op": "synchronize", "stream": random.choice((stream, None))})
