"""One rank of jobs that are carried out over Gloo as their programs say, each with groups of its own.

It reads ``jobs.json`` from a folder, and writes how each job ended for this rank, and its dump of the flight
recorder.
"""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

TIMEOUT = timedelta(seconds=2)
"""Of a job that hangs."""
LONG = timedelta(seconds=100)
ENVIRONMENT = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "LEAVE_AT_ONCE": "1",  # what hangs would keep the process
}


def start(call: dict[str, Any], group: Any, kept: list[Any]) -> Any:
    """Issue a collective or a transfer of some floats, and return its work."""
    import torch
    import torch.distributed as dist

    size, ranks = call["size_bytes"] // 4, dist.get_world_size(group)
    given, taken = torch.ones(size), torch.zeros(size)
    kept += (given, taken)
    match call["op"]:
        case "all-reduce":
            return dist.all_reduce(given, group=group, async_op=True)
        case "all-to-all":
            return dist.all_to_all_single(taken, given, group=group, async_op=True)
        case "all-gather":
            parts = [torch.zeros(size) for _ in range(ranks)]
            kept += parts
            return dist.all_gather(parts, given, group=group, async_op=True)
        case "send":
            return dist.isend(given, call["peer"], group=group)
        case "recv":
            return dist.irecv(taken, call["peer"], group=group)
    raise AssertionError(call)


def carry_out(operations: list[dict[str, Any]], groups: dict[str, Any]) -> str:
    """Do what a program says; return how it ended."""
    works: dict[str, list[Any]] = {name: [] for name in groups}  # a transfer is waited for once
    kept: list[Any] = []
    try:
        for operation in operations:
            if operation["op"] == "wait":
                while works[operation["group"]]:
                    works[operation["group"]].pop(0).wait()
                continue
            work = start(operation, groups[operation["group"]], kept)
            if operation["wait"] == "thread":
                work.wait()
            else:
                works[operation["group"]].append(work)
        for work in (work for group in works.values() for work in group):
            work.wait()
    except RuntimeError as error:
        return f"hung: {error}"
    return "ended"


def carry_out_all(rank: int, ranks: int, shared: str) -> None:
    """Carry out all jobs, one after another."""
    import torch.distributed as dist
    from torch._C import _distributed_c10d

    folder = Path(shared)
    jobs, hanging = (json.loads((folder / f"{name}.json").read_text()) for name in ("jobs", "hanging"))
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks, timeout=LONG)
    made = [
        {
            group["name"]: dist.new_group(timeout=TIMEOUT if name in hanging else LONG)
            for group in job["groups"]
        }
        for name, job in jobs.items()
    ]
    outcomes = {}
    for (name, job), groups in zip(jobs.items(), made, strict=True):
        dist.barrier()
        (program,) = [each for each in job["programs"] if rank in each["ranks"]]
        outcomes[name] = carry_out(program["threads"][0]["operations"], groups)
    (folder / f"outcomes_{rank}.json").write_text(json.dumps(outcomes))
    (folder / f"dump_rank_{rank}").write_bytes(_distributed_c10d._dump_fr_trace())  # type: ignore[attr-defined]  # not in torch's stubs
    text = _distributed_c10d._dump_fr_trace_json()  # type: ignore[attr-defined]
    (folder / f"dump_rank_{rank}.json").write_bytes(text)
    dist.barrier()
