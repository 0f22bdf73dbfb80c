"""One process of the study, started by it; prints seconds of rounds."""

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.studies.weight_sync import shared_memory
from benchmarks.studies.weight_sync.states import model_state, same_state
from pace_sync.documents.sync_plan import load_sync_plan
from pace_sync.weight_sync import StateReceiver, StateSender

TOKEN = "study"
PORT = 7090
WAIT = timedelta(minutes=30)


def receive(megabytes: int, address: str, rounds: int) -> None:
    """Be a receiver of state dicts."""
    like = model_state(megabytes, 0)
    with StateReceiver((address, PORT), like=like, token=TOKEN) as receiver:
        del like
        print("ready", flush=True)
        for number in range(rounds):
            weights = receiver.receive(WAIT.total_seconds()).data
            expected = model_state(megabytes, number)
            same = same_state(weights, expected)
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


def broadcast(
    megabytes: int, rank: int, size: int, master: str, bucket_bytes: int, rounds: int, how: str
) -> None:
    """Be a rank that broadcasts: tensor by tensor, buckets of up to so many bytes, or as slime does."""
    dist.init_process_group("gloo", f"tcp://{master}:{PORT}", timeout=WAIT, rank=rank, world_size=size)
    state = list(model_state(megabytes, rank).items())
    for _ in range(rounds):
        dist.barrier()
        began = time.monotonic()
        if how == "tensors":
            for _, tensor in state:
                dist.broadcast(_bytes(tensor), src=0)
        else:
            for bucket in _buckets(state, bucket_bytes):
                (_slime_bucket if how == "slime" else _flat_bucket)(rank, bucket)
        dist.barrier()
        if rank == 0:
            print(time.monotonic() - began, flush=True)


def _flat_bucket(rank: int, bucket: list[tuple[str, torch.Tensor]]) -> None:
    """Copy a bucket into one tensor, broadcast it, and copy it out again."""
    tensors = [tensor for _, tensor in bucket]
    if rank == 0:
        flat = torch.cat([each.reshape(-1) for each in tensors])
    else:
        flat = torch.empty(sum(each.numel() for each in tensors), dtype=torch.bfloat16)
    dist.broadcast(flat.view(torch.uint8), src=0)
    if rank:
        at = 0
        for each in tensors:
            each.view(-1).copy_(flat[at : at + each.numel()])
            at += each.numel()


def _slime_bucket(rank: int, bucket: list[tuple[str, torch.Tensor]]) -> None:
    """Do what slime's ``_update_bucket_weights_from_distributed`` does with a bucket.

    Names, types and shapes go to the engines first; then all tensors at the same time, one broadcast each
    (``update_weights_from_distributed``); then the sender waits until every engine has answered. slime needs
    Megatron, Ray and GPUs: Ray's calls are a broadcast of objects and a barrier here.
    """
    told = [[(name, tensor.dtype, tensor.shape) for name, tensor in bucket] if rank == 0 else None]
    dist.broadcast_object_list(told, src=0)
    handles = [dist.broadcast(_bytes(tensor), src=0, async_op=True) for _, tensor in bucket]
    for handle in handles:
        handle.wait()
    dist.barrier()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16).view(torch.uint8)


def _buckets(state: list[tuple[str, torch.Tensor]], largest: int) -> list[list[tuple[str, torch.Tensor]]]:
    """Fill buckets in the order of the list, as verl and slime do."""
    buckets: list[list[tuple[str, torch.Tensor]]] = []
    room = 0
    for name, tensor in state:
        size = tensor.numel() * tensor.itemsize
        if size > room:
            buckets.append([])
            room = largest
        buckets[-1].append((name, tensor))
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
    elif role == "verl-send":
        shared_memory.send(int(megabytes), rest[0], int(rest[1]), int(rest[2]))
    elif role == "verl-receive":
        shared_memory.receive(int(megabytes), rest[0], int(rest[1]))
    else:
        rank, size, master, bucket_bytes, rounds = rest
        broadcast(int(megabytes), int(rank), int(size), master, int(bucket_bytes), int(rounds), role)


if __name__ == "__main__":
    main()
