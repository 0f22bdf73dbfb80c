"""Workers without training: links to real servers over loopback, all in one process."""

import threading
from collections.abc import Sequence

import torch

from pace.runtime.transports.runs import Runs
from pace.wire.addresses import ServerAddress
from pace.wire.frames import FrameKind
from pace.wire.handshake import Greeting
from pace_servers.runtime.layout import Layout, memory_of, segment_of
from pace_servers.runtime.link import PushPullCall, ServerLink
from pace_servers.runtime.server import Server

WITHIN_S = 30.0


class Worker:
    """A rank's link to one server."""

    def __init__(
        self, server: Server, rank: int, size: int, *, token: str | None = None, silence_s: float = 20.0
    ) -> None:
        self.failed = threading.Event()
        self.reason = ""
        self._rounds: dict[int, int] = {}
        self.link = ServerLink(
            ServerAddress(host=server.host, port=server.port, name="server 0"),
            Greeting(job="job", rank=rank, size=size, silence_s=silence_s),
            token=token,
            on_failure=self._fail,
            within_s=WITHIN_S,
        )

    def _fail(self, reason: str) -> None:
        if not self.failed.is_set():
            self.reason = reason
            self.failed.set()

    def start(
        self, segment: int, tensor: torch.Tensor, *, seed: bool = False, runs: Runs | None = None
    ) -> "Arrival":
        """Push a tensor as a segment of the layout; see ``PushPullCall`` for `runs`."""
        if not seed:
            self._rounds[segment] = self._rounds.get(segment, 0) + 1
        arrival = Arrival()
        self.link.start(
            PushPullCall(
                segment=segment,
                round=self._rounds.get(segment, 0),
                memory=memory_of(tensor),
                done=arrival.done,
                kind=FrameKind.SEED if seed else FrameKind.PUSH,
                runs=runs,
            )
        )
        return arrival

    def finish(self) -> None:
        """Say goodbye and close."""
        self.link.finish()
        self.link.close()


class Arrival:
    """A segment that is awaited."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.error: BaseException | None = None

    def done(self, error: BaseException | None) -> None:
        """Take note of the end."""
        self.error = error
        self.event.set()

    def wait(self) -> None:
        """Wait for the segment; raises what went wrong."""
        assert self.event.wait(WITHIN_S), "nothing came back"
        if self.error is not None:
            raise self.error


def layout_of(tensors: Sequence[torch.Tensor], **options: object) -> Layout:
    """Return the layout of tensors in order of urgency."""
    segments = tuple(segment_of(tensor, turn) for turn, tensor in enumerate(tensors))
    return Layout(segments=segments, **options)  # type: ignore[arg-type]  # as the test says
