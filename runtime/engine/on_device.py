"""What the engine does differently where tensors lie on a device, which runs behind the host.

The host hands groups over before the device has computed them, and needs sums before the device has added
them up. Neither blocks the training thread for longer than until the transport was given what it waits for.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any

from pace.runtime.engine.sends import GroupSend
from pace.runtime.transports.device import Device
from pace.runtime.transports.torch_threads import torch_thread


class OnDevice:
    """Notices in a thread of its own what the device has computed, and has the device wait for sums.

    Parameters
    ----------
    computed
        Called from that thread with each group that was expected, in that order.
    failed
        Called from that thread with what the device raised instead; nothing more is noticed after it.
    block
        Blocks the calling thread until a group's event is set, or raises nothing and returns at a failure.
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
        """Record a group whose gradients the calling thread has queued."""
        self._expected.put((send, self._device.now()))

    def _run(self) -> None:
        while (entry := self._expected.get()) is not None:
            send, moment = entry
            try:
                moment.synchronize()
            except Exception as error:  # whatever it is, waiting threads receive it
                self._failed(send, error)
                return
            self._computed(send)

    def wait(self, send: GroupSend) -> None:
        """Have the device wait for a group's sum before what the calling thread queues next.

        Blocks until all of the group was given to the transport, and for the sum itself where the transport
        knows of no moment to wait for.
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
        """Return how long the device waited for a group in its last round; blocks until that is over."""
        return sum(self._device.seconds(wait)[1] for wait in send.device_waits)

    def close(self, *, failed: bool) -> None:
        """End the thread after what is expected has come; after a failure it may be left behind."""
        self._expected.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=1.0 if failed else None)
