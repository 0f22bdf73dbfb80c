"""Runs torchtitan's own entry point on CPUs, with a stand-in for the accelerator that it asks torch for."""

from types import SimpleNamespace
from typing import Any

import torch
import torch._inductor.utils
import torch._utils
import torch.distributed as dist

device: Any = SimpleNamespace(
    **{name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("__")}
)
device.device_count = lambda: 1
device.current_device = lambda: 0
device.get_device_name = lambda *_: "CPU"
device.get_device_properties = lambda *_: SimpleNamespace(total_memory=1 << 34)
device.memory_stats = lambda *_: {}
device.reset_peak_memory_stats = device.empty_cache = lambda *_: None
changed: Any = torch._utils
changed._get_available_device_type = lambda: "cpu"
changed._get_device_module = lambda _: device
# torchtitan's own pass asks for it.
changed = torch._inductor.utils
changed.get_gpu_dram_gbps = lambda: 50
if not hasattr(dist, "set_timeout"):  # torch 2.13 has it under another name
    changed = dist
    changed.set_timeout = dist.distributed_c10d._set_pg_timeout

if __name__ == "__main__":
    from torchtitan.train import main

    main()
