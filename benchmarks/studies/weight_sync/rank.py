"""One process of the study, started by it; prints seconds of rounds."""

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from pace.documents.sync.sync_plan import load_sync_plan
from pace.runtime.weight_sync import StateReceiver, StateSender

TOKEN = "study"
PORT = 7090
WAIT = timedelta(minutes=30)


def model_state(megabytes: int, seed: int) -> dict[str, torch.Tensor]:
    """Return bfloat16 weights in the shapes of a transformer: matrices of layers, and norms."""
    random = torch.Generator().manual_seed(seed)
    layers, width = 24, 1024 if megabytes >= 203 else 128
    hidden = max((megabytes * 10**6 // 2 // layers - 4 * width * width) // (3 * width), 8)
    shapes: dict[str, tuple[int, int]] = {}
    for layer in range(layers):
        shapes |= {f"layers.{layer}.{name}": (width, width) for name in ("q", "k", "v", "o")}
        shapes |= {f"layers.{layer}.{name}": (hidden, width) for name in ("up", "gate", "down")}
        shapes |= {f"layers.{layer}.{name}": (1, width) for name in ("norm1", "norm2")}
    return {
        name: torch.randint(-(2**15), 2**15, shape, generator=random, dtype=torch.int16).view(torch.bfloat16)
        for name, shape in shapes.items()
    }


def receive(megabytes: int, address: str, rounds: int) -> None:
    """Be a receiver of state dicts."""
    like = model_state(megabytes, 0)
    with StateReceiver((address, PORT), like=like, token=TOKEN) as receiver:
        del like
        print("ready", flush=True)
        for number in range(rounds):
            weights = receiver.receive(WAIT.total_seconds()).data
            expected = model_state(megabytes, number)
            same = all(
                torch.equal(weights[name].view(torch.int16), tensor.view(torch.int16))
                for name, tensor in expected.items()
            )
            del weights, expected
            print("equal" if same else "DIFFERENT", flush=True)
        receiver.finish()


def send(megabytes: int, plan: Path, rounds: int, addresses: list[str]) -> None:
    """Be the sender of state dicts; each round begins when a line comes in."""
    places = [f"{address}:{PORT}" for address in addresses]
    with StateSender(places, plan=load_sync_plan(plan), token=TOKEN) as sender:
        for number in range(rounds):
            state = model_state(megabytes, number)
            print("ready", flush=True)
            sys.stdin.readline()
            report = sender.send(state, number, timeout_s=WAIT.total_seconds())
            print(report.seconds if not report.failed else report.failed, flush=True)


def broadcast(megabytes: int, rank: int, size: int, master: str, bucket_bytes: int, rounds: int) -> None:
    """Be a rank that broadcasts tensors, or buckets of up to so many bytes, and copies them."""
    dist.init_process_group("gloo", f"tcp://{master}:{PORT}", timeout=WAIT, rank=rank, world_size=size)
    state = list(model_state(megabytes, rank).values())
    for _ in range(rounds):
        dist.barrier()
        began = time.monotonic()
        if not bucket_bytes:
            for tensor in state:
                dist.broadcast(tensor.view(torch.int16).view(torch.uint8), src=0)
        else:
            for bucket in _buckets(state, bucket_bytes):
                if rank == 0:
                    flat = torch.cat([each.reshape(-1) for each in bucket])
                else:
                    flat = torch.empty(sum(each.numel() for each in bucket), dtype=torch.bfloat16)
                dist.broadcast(flat.view(torch.uint8), src=0)
                if rank:
                    at = 0
                    for each in bucket:
                        each.view(-1).copy_(flat[at : at + each.numel()])
                        at += each.numel()
        dist.barrier()
        if rank == 0:
            print(time.monotonic() - began, flush=True)


def _buckets(state: list[torch.Tensor], largest: int) -> list[list[torch.Tensor]]:
    """Fill buckets in the order of the list, as verl and slime do."""
    buckets: list[list[torch.Tensor]] = []
    room = 0
    for tensor in state:
        size = tensor.numel() * tensor.itemsize
        if size > room:
            buckets.append([])
            room = largest
        buckets[-1].append(tensor)
        room -= size
    return buckets


def main() -> None:
    """Be what the arguments say."""
    torch.set_num_threads(1)
    role, megabytes, *rest = sys.argv[1:]
    if role == "receive":
        receive(int(megabytes), rest[0], int(rest[1]))
    elif role == "send":
        send(int(megabytes), Path(rest[0]), int(rest[1]), rest[2:])
    else:
        rank, size, master, bucket_bytes, rounds = rest
        broadcast(int(megabytes), int(rank), int(size), master, int(bucket_bytes), int(rounds))


if __name__ == "__main__":
    main()
