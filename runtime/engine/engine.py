"""The engine gives segments to the transport in order, with at most the credit's bytes in flight.

One segment may exceed the credit for a moment: the next segment is handed over shortly before the one in
flight is expected to end, so that the network does not idle in between.

The engine knows buffers as tensors and groups as numbers, but no gradients, models or optimizers. Every rank
submits every group exactly once in a round, whatever gradients it computes. So collectives can have the same
order on all ranks, in one of these ways:

- planned: all ranks follow the plan's order.
- keyed: if the transport matches segments by name, each rank follows the plan. Or it hands over all
  segments that are ready, and the transport chooses whenever a link has room.
- leader and follower: rank 0 chooses (``SendOrder``) and publishes each choice before it sends; the other
  ranks follow. If the transport matches collectives by name, the other ranks submit at once, and rank 0's
  submission decides.

Groups that are all-reduced and groups that are pushed to servers have separate threads and credits
(``send_queues.py``), but share rounds and the order.

With tensors on a device (a GPU), the host submits and waits for groups that the device has not computed or
summed yet. A wait blocks the host only until the transport has the whole group; the device waits for the sum.
If the transport queues its calls on the device (NCCL) and all ranks follow the plan, the thread that submits
a group makes the calls, in the plan's order, each behind the moment at which its group is computed: neither
another thread nor the device delays them. Otherwise a group counts as submitted when the device has computed
it.
"""

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pace.errors import CommunicationFailed
from pace.runtime.engine.on_device import OnDevice
from pace.runtime.engine.plan import GroupExchange, SendPlan
from pace.runtime.engine.report import GroupTimes, SegmentTimes
from pace.runtime.engine.send_queues import SendQueue, calls_of, send_queues_of
from pace.runtime.engine.sends import GroupSend, SegmentMemory, SegmentSend, last_times, sends_of
from pace.runtime.transports.runs import Runs
from pace.runtime.transports.torch_threads import torch_thread
from pace.runtime.transports.transport import Discipline, Transport, reason_of


class Engine:
    """Sends the segments of submitted groups. Its threads run when it is created.

    Parameters
    ----------
    plan
        Groups, segments in planned order, and credit.
    tensors
        For each segment of the plan, the part of its group's buffer that it sends.
    discipline
        What decides which segment is sent next.
    pushed_discipline
        The same for segments sent over parameter servers in a job that also all-reduces.
    timeout_s
        A wait fails after this many seconds.
    name
        Prefix of the names of threads and collectives.
    on_stall
        Called in the waiting thread, with the group's number, when a wait exceeds `stall_s` or half of
        `timeout_s`.
    explain
        Called once after a failure, in the waiting thread; returns what is known about the ranks at fault.
    """

    def __init__(
        self,
        plan: SendPlan,
        tensors: Sequence[SegmentMemory],
        transport: Transport,
        *,
        discipline: Discipline,
        pushed_discipline: Discipline = "overtake",
        timeout_s: float,
        name: str,
        stall_s: float = 5.0,
        on_stall: Callable[[int], None] | None = None,
        explain: Callable[[], str] | None = None,
    ) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._stall_s = min(stall_s, timeout_s / 2)
        self._on_stall = on_stall
        self._explain = explain
        self._groups = plan.groups
        self._group_sends, self._segments = sends_of(plan, tensors, name)
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._send_queues, self._queue_of = send_queues_of(
            plan,
            self._group_sends,
            self._segments,
            transport,
            self._lock,
            discipline=discipline,
            pushed_discipline=pushed_discipline,
        )
        self._closed = False
        self._failure: CommunicationFailed | None = None
        self._asides: set[threading.Event] = set()
        self._explained = False
        self.waited_s = 0.0
        transport.prepare(
            calls_of(self._segments, self._queue_of),
            pace_bytes_per_s=plan.pace_bytes_per_s,
        )
        self._queued = transport.queues_calls and all(q.role == "planned" for q in self._send_queues)
        self._calling = threading.Lock()
        self._on_device: OnDevice | None = None
        if transport.device is not None:
            self._on_device = OnDevice(
                transport.device,
                queued=self._queued,
                computed=self._enter_computed,
                failed=lambda send, error: self._fail("could not be computed", send, error),
                block=self._block,
                name=f"{name}.device",
            )
        self._prepared = PreparedGroups(
            self._lock,
            enter=self._enter,
            failed=lambda send, error: self._fail("could not be prepared", send, error),
            stopped=self._stopped,
            name=f"{name}.updates",
        )
        self._threads = [
            torch_thread(self._run, args=(queue,), name=f"{name}.engine.{queue.name}")
            for queue in ([] if self._queued else self._send_queues)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def sent_segments(self) -> int:
        """The number of segments handed over to the transport."""
        return sum(queue.sent_segments for queue in self._send_queues)

    @property
    def sent_bytes(self) -> int:
        """The number of bytes handed over to the transport."""
        return sum(queue.sent_bytes for queue in self._send_queues)

    def rebind(self, group: int, tensors: Sequence[SegmentMemory]) -> None:
        """Replace the tensors that a group's segments send, in planned order; it must not be in flight."""
        send = self._group_sends[group]
        assert send.done.is_set(), f"group {group} is in flight"
        for segment, tensor in zip(send.segments, tensors, strict=True):
            segment.tensor = tensor

    def submit(
        self,
        group: int,
        *,
        after: Sequence[int] = (),
        prepare: Callable[[], None] | None = None,
        runs: Runs | None = None,
    ) -> None:
        """Submit a group whose buffer is filled. Do not touch the buffer until the group is done.

        Parameters
        ----------
        after
            Groups that `prepare` needs.
        prepare
            Fills the buffer, in another thread, once the groups in `after` are done.
        runs
            The elements of the buffer that may be nonzero, for a transport that uses them.

        Raises
        ------
        CommunicationFailed
            If the engine has failed before.
        """
        send = self._group_sends[group]
        if self._on_device is not None and not send.done.is_set():
            self._block(send, send.done)  # the host is ahead by a whole round
        if self._failure is not None:
            self._raise_failure()
        with self._lock:
            assert send.done.is_set() or self._failure is not None, f"group {group} submitted twice"
            send.submitted_s = time.perf_counter()
            send.remaining = send.unsent = len(send.segments)
            if not send.segments:
                send.done_s = send.sent_s = send.submitted_s
                return
            send.done.clear()
            send.waited_s = 0.0
            if self._transport.takes_runs:
                send.give_runs(runs)
            if prepare is not None:
                assert self._on_device is None  # a device waits for them in its own queue
                self._prepared.add(send, [self._group_sends[each] for each in after], prepare)
                return
            if self._on_device is None:
                self._enter(send)
                return
        send.sent.clear()
        self._on_device.expect(send)

    def _enter(self, send: GroupSend) -> None:
        """Allow a group to be sent; call it with the lock held."""
        queue = self._queue_of[send.number]
        if queue.order.enter(send):
            queue.wake.notify()

    def _enter_computed(self, send: GroupSend) -> None:
        assert self._on_device is not None
        self.waited_s += self._on_device.end_waits(send)
        with self._lock:
            send.submitted_s = time.perf_counter()
            self._enter(send)
        if self._queued:
            for queue in self._send_queues:
                self._call_in_order(queue)

    def _call_in_order(self, queue: SendQueue) -> None:
        """Make the calls that are next in the plan, as long as their groups are submitted."""
        segment: SegmentSend | None = None
        try:
            with self._calling:  # several threads may submit, and the order of calls is that of the device
                while (segment := queue.take_planned(self._stopped)) is not None:
                    assert self._on_device is not None
                    self._on_device.await_computed(segment.group)
                    self._call(segment)
        except Exception as error:  # any error is passed on to waiting threads
            self._fail("could not be sent", segment.group if segment else None, error)

    def leave_out(self, group: int) -> None:
        """Do not send a group in this round. Every rank must call it, at the same place in the round."""
        send = self._group_sends[group]
        queue = self._queue_of[group]
        with self._lock:
            queue.order.leave_out(send)
            queue.wake.notify_all()
        if self._queued:
            self._call_in_order(queue)

    def separate_halves(self, *, apart: bool) -> None:
        """Send all reduce-scatters before gathers from now on, or in planned order from the next round on.

        Every rank must call it, before any gather of this round was submitted.
        """
        with self._lock:
            for queue in self._send_queues:
                queue.order.separate_halves(apart=apart)
                queue.wake.notify_all()
        for queue in self._send_queues if self._queued else ():
            self._call_in_order(queue)

    def call_aside(
        self, exchange: GroupExchange | None, group: int, memory: SegmentMemory, name: str
    ) -> None:
        """Make one call outside of the plan, between the same calls on every rank, and wait as ``wait`` does.

        Every rank must call it. Without a device, nothing else may be in flight.

        Raises
        ------
        CommunicationFailed
            If the call failed or did not end within the time-out.
        """
        send = self._group_sends[group]
        ended = threading.Event()
        with self._lock:
            self._asides.add(ended)

        def done(error: BaseException | None) -> None:
            if error is not None:
                self._fail("failed", send, error)
            with self._lock:
                self._asides.discard(ended)
            ended.set()

        start = time.perf_counter()
        if self._failure is None:
            summed = None
            with self._calling:
                if self._on_device is not None:
                    self._on_device.await_queued()
                summed = _call_for(self._transport, exchange)(memory, name, done)
            if summed is None or self._transport.device is None:
                self._block(send, ended)
            else:
                self._transport.device.wait_for(summed)
        self.waited_s += time.perf_counter() - start
        if self._failure is not None:
            self._raise_failure()

    def done(self, group: int, within_s: float) -> bool:
        """Wait at most `within_s` seconds for a group; return whether it is reduced."""
        return self._group_sends[group].done.wait(within_s)

    def wait(self, group: int) -> None:
        """Wait until a submitted group is reduced: block the caller, or make the device wait.

        Raises
        ------
        CommunicationFailed
            If its all-reduce failed or did not end within the time-out.
        """
        send = self._group_sends[group]
        if not send.done.is_set():
            if self._on_device is not None:
                self._on_device.wait(send)
            else:
                start = time.perf_counter()
                self._block(send, send.done)
                waited_s = time.perf_counter() - start
                send.waited_s += waited_s
                self.waited_s += waited_s
        if self._failure is not None:
            self._raise_failure()

    def settle(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until nothing is in flight; return whether nothing is."""
        with self._lock:
            self._ended.wait_for(self._settled, timeout_s)
            return self._failure is None and self._settled()

    def _settled(self) -> bool:
        return self._failure is not None or (
            self._prepared.idle and all(queue.idle for queue in self._send_queues)
        )

    def last_round(self) -> tuple[tuple[GroupTimes, ...], tuple[SegmentTimes, ...]]:
        """Return when each group and segment was last submitted, sent and done; call it after all waits."""
        if self._on_device is not None:
            for send in self._group_sends:
                self._block(send, send.done)
                send.waited_s = self._on_device.waited_s(send)
        return last_times(self._group_sends, self._groups)

    def close(self) -> None:
        """Stop the threads after what is in flight has ended. Idempotent."""
        if self._on_device is not None:
            self._on_device.close(failed=self._failure is not None)
        with self._lock:
            self._closed = True
            self._wake_all()
            if self._failure is None:
                self._ended.wait_for(
                    lambda: (
                        self._failure is not None
                        or not any(queue.in_flight.num_segments for queue in self._send_queues)
                    ),
                    self._timeout_s,
                )
        for thread in self._threads:
            if threading.current_thread() is not thread:
                # If the leader is gone, a follower may be in a call that ends only with its time-out.
                thread.join(timeout=None if self._failure is None else 1.0)
        self._prepared.close(failed=self._failure is not None)

    def _run(self, queue: SendQueue) -> None:
        segment: SegmentSend | None = None
        try:
            while (segment := queue.take_next(self._segments, self._stopped)) is not None:
                self._call(segment)
        except Exception as error:  # any error is passed on to waiting threads
            self._fail("could not be sent", segment.group if segment else None, error)

    def _call(self, segment: SegmentSend) -> None:
        call = _call_for(self._transport, self._groups[segment.group.number].exchange)
        completed = functools.partial(self._complete, segment)
        runs = {} if segment.runs is None else {"runs": segment.runs}
        segment.summed = call(segment.tensor, segment.name, completed, **runs)
        if self._on_device is not None and segment is segment.group.segments[-1]:
            segment.group.sent.set()

    def _complete(self, segment: SegmentSend, error: BaseException | None) -> None:
        segment.done_s = time.perf_counter()
        if error is not None:
            self._fail("failed", segment.group, error)
        send = segment.group
        queue = self._queue_of[send.number]
        with self._lock:
            queue.in_flight.remove(segment)
            send.remaining -= 1
            if send.remaining == 0:
                send.done_s = segment.done_s
                send.done.set()
                self._prepared.notify()
            for each in self._send_queues:
                if each.order.num_waiting or self._closed:
                    each.wake.notify_all()
            if queue.idle or self._closed:
                self._ended.notify_all()

    # Failure: the first one ends every wait, and nothing is sent after it.

    @property
    def failure(self) -> CommunicationFailed | None:
        """The first failure, or None; nothing is sent after it."""
        return self._failure

    def _block(self, send: GroupSend, until: threading.Event) -> None:
        start = time.monotonic()
        stalled = False
        while True:
            waited_s = time.monotonic() - start
            if waited_s >= self._timeout_s:
                self._fail(f"did not end within {self._timeout_s:g} s", send, None)
                return
            next_s = self._timeout_s if stalled else self._stall_s
            if until.wait(max(next_s - waited_s, 0.0)):
                return
            if not stalled and time.monotonic() - start >= self._stall_s and self._on_stall is not None:
                self._on_stall(send.number)
            stalled = True

    def _raise_failure(self) -> None:
        assert self._failure is not None
        with self._lock:
            explain = None if self._explained else self._explain
            self._explained = True
        if explain is not None:
            found = explain()
            if found:
                self._failure = CommunicationFailed(f"{self._failure}; {found}")
        raise self._failure

    def abandon(self, failure: CommunicationFailed | None = None) -> None:
        """Abandon what is in flight: nothing more is sent, and every wait raises `failure`, if given."""
        if failure is not None:
            with self._lock:
                if self._failure is None:
                    self._failure, self._explained = failure, True
        self._fail("was abandoned", None, None)

    def _fail(self, what: str, send: GroupSend | None, error: BaseException | None) -> None:
        exchange = None if send is None else self._groups[send.number].exchange
        kind = exchange if exchange in ("reduce-scatter", "all-gather") else "all-reduce"
        subject = f"an {kind}" if send is None else f"the {kind} of {self.describe(send.number)}"
        cause = "" if error is None else f": {reason_of(error)}"
        with self._lock:
            if self._failure is None:
                self._failure = CommunicationFailed(
                    f"rank {self._transport.rank} of {self._transport.size}: {subject} {what}{cause}"
                )
                self._failure.__cause__ = error
            for waiting in self._group_sends:
                waiting.sent.set()
                waiting.done.set()
            for ended in self._asides:
                ended.set()
            self._wake_all()

    def describe(self, group: int) -> str:
        """Return a group's name for messages."""
        names = self._groups[group].gradients
        return f"group {group} ({', '.join(names[:2])}{', ...' if len(names) > 2 else ''})"

    def _stopped(self) -> bool:
        return self._closed or self._failure is not None

    def _wake_all(self) -> None:
        for queue in self._send_queues:
            queue.wake.notify_all()
        self._prepared.notify()
        self._ended.notify_all()


class _Prepared(NamedTuple):
    send: GroupSend
    after: Sequence[GroupSend]
    prepare: Callable[[], None]


class PreparedGroups:
    """Fills groups in its own thread, each once the groups that it needs are done.

    In a sharded plan, the gather of updated parameters needs the sums of some reduce-scatters, and then the
    update. Neither the training thread, which computes the next forward pass, nor the engine's thread, which
    sends, waits for them.

    Parameters
    ----------
    lock
        The engine's lock.
    enter
        Called with each filled group, with the lock held.
    failed
        Called with the error of filling a group. The thread then ends.
    stopped
        Returns whether nothing will be sent any more; called with the lock held.
    """

    def __init__(
        self,
        lock: threading.Lock,
        *,
        enter: Callable[[GroupSend], None],
        failed: Callable[[GroupSend, BaseException], None],
        stopped: Callable[[], bool],
        name: str,
    ) -> None:
        self._lock = lock
        self._wake = threading.Condition(lock)
        self._enter = enter
        self._failed = failed
        self._stopped = stopped
        self._name = name
        self._waiting: list[_Prepared] = []
        self._preparing = False
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to fill; call it with the lock held."""
        return not self._waiting and not self._preparing

    def add(self, send: GroupSend, after: Sequence[GroupSend], prepare: Callable[[], None]) -> None:
        """Fill a group and enter it once the groups in `after` are done; call it with the lock held."""
        self._waiting.append(_Prepared(send, after, prepare))
        if self._thread is None:
            self._thread = torch_thread(self._run, name=self._name)
            self._thread.start()
        self._wake.notify()

    def notify(self) -> None:
        """Check again, because a group is done or sending has stopped; call it with the lock held."""
        self._wake.notify()

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            try:
                entry.prepare()
            except Exception as error:  # any error is passed on to waiting threads
                self._failed(entry.send, error)
                return
            with self._lock:
                self._preparing = False
                if not self._stopped():
                    entry.send.submitted_s = time.perf_counter()
                    self._enter(entry.send)
            del entry

    def _next(self) -> _Prepared | None:
        with self._lock:
            while not self._stopped():
                for number, entry in enumerate(self._waiting):
                    if all(send.done.is_set() for send in entry.after):
                        self._preparing = True
                        return self._waiting.pop(number)
                self._wake.wait()
            return None

    def close(self, *, failed: bool) -> None:
        """End the thread once sending has stopped; after a failure it may be left running."""
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout=1.0 if failed else None)


def _call_for(transport: Transport, exchange: GroupExchange | None) -> Callable[..., Any]:
    """Return the transport's function that starts this exchange."""
    if exchange == "reduce-scatter":
        return transport.reduce_scatter
    return transport.all_gather if exchange == "all-gather" else transport.allreduce
