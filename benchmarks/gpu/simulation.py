"""The simulated device of the tests in place of a GPU, so that the runtime takes its CUDA paths in a dry run."""

import pace.runtime.torch
from tests.runtime.engine.queued_device import LaggingDevice, QueuedTransport


def simulate_gpu(seed: int) -> None:
    """Have the wrappers of this process believe that every model lies on a device, which lags at random."""
    vars(pace.runtime.torch).update(
        device_of=lambda _model: LaggingDevice(seed),
        CudaTransport=lambda device, **_options: QueuedTransport(device),
    )
