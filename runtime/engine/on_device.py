"""The engine's handling of tensors on a device (a GPU), which runs behind the host.

The host submits groups before the device has computed them, and uses sums before the device has computed
these. The training thread is blocked only until the transport has the group that it waits for.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from pace.runtime.engine.sends import GroupSend
from pace.runtime.transports.device import Device
from pace.runtime.transports.torch_threads import torch_thread


class OnDevice:
    """Notices which groups the device has computed, and makes the device wait for sums.

    Parameters
    ----------
    queued
        Whether the communication queue waits for groups that are not computed. Otherwise a thread waits.
    computed
        Called with each expected group, in order, once it may be sent: in the thread that waits, or at once.
    failed
        Called in that thread with the device's error. The thread then ends.
    block
        Blocks the calling thread until a group's event is set; returns without an error if the engine fails.
    """

    def __init__(
        self,
        device: Device,
        *,
        queued: bool,
        computed: Callable[[GroupSend], None],
        failed: Callable[[GroupSend, BaseException], None],
        block: Callable[[GroupSend, threading.Event], None],
        name: str,
    ) -> None:
        self._device = device
        self._computed = computed
        self._failed = failed
        self._block = block
        self._queued = queued
        self._ended_waits: deque[tuple[Any, Any]] = deque()
        self._expected: queue.SimpleQueue[tuple[GroupSend, Any] | None] = queue.SimpleQueue()
        self._thread = None if queued else torch_thread(self._run, name=name)
        if self._thread is not None:
            self._thread.start()

    def expect(self, send: GroupSend) -> None:
        """Send a group, whose gradients the calling thread has queued on the device, once it is computed."""
        send.computed = self._device.now()
        if self._queued:
            self._computed(send)
        else:
            self._expected.put((send, send.computed))

    def await_computed(self, send: GroupSend) -> None:
        """Make what is queued for communication next wait until a group is computed."""
        with self._device.apart():
            self._device.wait_for(send.computed)

    def await_queued(self) -> None:
        """Make what is queued for communication next wait until the calling thread's work is computed."""
        moment = self._device.now()
        with self._device.apart():
            self._device.wait_for(moment)

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

    def end_waits(self, send: GroupSend) -> float:
        """Begin a group's next round; return the seconds of earlier waits that the device has passed."""
        self._ended_waits += send.device_waits
        send.device_waits.clear()
        waited_s = 0.0
        while self._ended_waits and self._device.reached(self._ended_waits[0][1]):
            waited_s += self._device.seconds(self._ended_waits.popleft())[1]
        return waited_s

    def close(self, *, failed: bool) -> None:
        """End the thread after all expected groups were computed; after a failure it may be left running."""
        self._expected.put(None)
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout=1.0 if failed else None)
