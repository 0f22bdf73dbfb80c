"""The tests' simulated device in place of a GPU: the runtime takes its paths for devices in a dry run."""

import pace.runtime.options
from tests.runtime.engine.queued_device import LaggingDevice, QueuedTransport


def simulate_gpu(seed: int) -> None:
    """Make the wrappers of this process treat every model as if it were on a device with a random lag."""
    vars(pace.runtime.options).update(
        device_of=lambda _model: LaggingDevice(seed),
        CudaTransport=QueuedTransport,
    )
