"""The tests' simulated device in place of a GPU: the runtime takes its paths for devices in a dry run."""

import pace.runtime.torch
from tests.runtime.engine.queued_device import LaggingDevice, QueuedTransport


def simulate_gpu(seed: int) -> None:
    """Have the wrappers of this process believe that every model lies on a device, which lags at random."""
    vars(pace.runtime.torch).update(
        device_of=lambda _model: LaggingDevice(seed),
        CudaTransport=lambda device, **_options: QueuedTransport(device),
    )
