"""verl's ``BucketedWeightSender`` and its receiver through shared memory, as one process of the study.

The classes run unmodified, from the file of an installed verl. What they import of verl is replaced: its
package loads Ray, and its device module has no device on a machine without GPUs.
"""

import asyncio
import contextlib
import importlib.util
import sys
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks.studies.weight_sync.states import model_state, same_state

_FILE = "verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py"


class _NoDevice:
    def synchronize(self) -> None:
        """Wait for nothing: copies on the CPU have ended."""

    def empty_cache(self) -> None:
        """Free nothing."""


async def _ensure_async_iterator(items: Iterable[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


def load_transfer() -> Any:
    """Return verl's module of the two classes, which is found on the path and not imported as a package."""
    path = next((Path(folder, _FILE) for folder in sys.path if Path(folder, _FILE).is_file()), None)
    if path is None:
        raise SystemExit(f"there is no {_FILE} on the path: pip install --no-deps --target FOLDER verl pyzmq")
    device = ModuleType("verl.utils.device")
    vars(device).update(
        get_device_id=lambda: 0,
        get_device_name=lambda: "cpu",
        get_torch_device=_NoDevice,
        is_support_ipc=lambda: False,
    )
    rollout = ModuleType("verl.workers.rollout.utils")
    vars(rollout).update(ensure_async_iterator=_ensure_async_iterator)
    for name in ("verl", "verl.utils", "verl.workers", "verl.workers.rollout"):
        sys.modules[name] = ModuleType(name)
    sys.modules |= {device.__name__: device, rollout.__name__: rollout}
    spec = importlib.util.spec_from_file_location("bucketed_weight_transfer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def send(megabytes: int, place: str, bucket_mib: int, rounds: int) -> None:
    """Send rounds of weights; a line comes in before each, and its seconds go out."""
    transfer = load_transfer()
    for number in range(rounds):
        state = model_state(megabytes, number)
        print("ready", flush=True)
        sys.stdin.readline()
        began = time.monotonic()
        sender = transfer.BucketedWeightSender(f"ipc://{place}", bucket_size_mb=bucket_mib, use_shm=True)
        asyncio.run(sender.async_send_weights(state.items()))
        print(time.monotonic() - began, flush=True)


def receive(megabytes: int, place: str, rounds: int) -> None:
    """Copy what arrives into the tensors of an engine, and say whether it is right."""
    transfer = load_transfer()
    engine = model_state(megabytes, 0)

    def load(weights: list[tuple[str, torch.Tensor]], _is_last: bool) -> None:
        for name, tensor in weights:
            engine[name].copy_(tensor)

    print("ready", flush=True)
    for number in range(rounds):
        receiver = transfer.BucketedWeightReceiver(f"ipc://{place}", torch.device("cpu"), use_shm=True)
        with contextlib.suppress(BufferError):  # the last tensors still point into the memory that it closes
            receiver.receive_weights(load)
        print("equal" if same_state(engine, model_state(megabytes, number)) else "DIFFERENT", flush=True)
