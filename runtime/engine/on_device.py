"""The engine's handling of tensors on a device (a GPU), which runs behind the host.

The host submits groups before the device has computed them, and uses sums before the device has computed
these. The training thread is blocked only until the transport has the group that it waits for.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any

from pace.runtime.engine.sends import GroupSend
from pace.runtime.transports.device import Device
from pace.runtime.transports.torch_threads import torch_thread


class OnDevice:
    """Watches in its own thread which groups the device has computed, and makes the device wait for sums.

    Parameters
    ----------
    computed
        Called in that thread with each expected group, in order, once the device has computed it.
    failed
        Called in that thread with the device's error. The thread then ends.
    block
        Blocks the calling thread until a group's event is set; returns without an error if the engine fails.
    """

    def __init__(
        self,
        device: Device,
        *,
        computed: Callable[[GroupSend], None],
        failed: Callable[[GroupSend, BaseException], None],
        block: Callable[[GroupSend, threading.Event], None],
        name: str,
    ) -> None:
        self._device = device
        self._computed = computed
        self._failed = failed
        self._block = block
        self._expected: queue.SimpleQueue[tuple[GroupSend, Any] | None] = queue.SimpleQueue()
        self._thread = torch_thread(self._run, name=name)
        self._thread.start()

    def expect(self, send: GroupSend) -> None:
        """Watch for a group whose gradients the calling thread has queued on the device."""
        self._expected.put((send, self._device.now()))

    def _run(self) -> None:
        while (entry := self._expected.get()) is not None:
            send, moment = entry
            try:
                moment.synchronize()
            except Exception as error:  # any error is passed on to waiting threads
                self._failed(send, error)
                return
            self._computed(send)

    def wait(self, send: GroupSend) -> None:
        """Make the device wait for a group's sum before the work that the calling thread queues next.

        Blocks until the whole group was handed over to the transport. If the transport offers no event to
        wait for, it blocks until the sum is there.
        """
        before = self._device.now()
        self._block(send, send.sent)
        if any(segment.summed is None for segment in send.segments):
            self._block(send, send.done)
        else:
            for segment in send.segments:
                self._device.wait_for(segment.summed)
        send.device_waits.append((before, self._device.now()))

    def waited_s(self, send: GroupSend) -> float:
        """Return how many seconds the device waited for a group in its last round; blocks until it has."""
        return sum(self._device.seconds(wait)[1] for wait in send.device_waits)

    def close(self, *, failed: bool) -> None:
        """End the thread after all expected groups were computed; after a failure it may be left running."""
        self._expected.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=1.0 if failed else None)
