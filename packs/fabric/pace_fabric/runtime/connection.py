"""A connection between two processes of a fabric: messages and tensors both ways.

The frames, the token and TLS are those of parameter servers.

One thread reads and one writes. What is read goes to callbacks on the reading thread, which only pass it on.
"""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable

import numpy as np

from pace.errors import InvalidUse
from pace.runtime.event_log import log, note_refusal
from pace.wire import meeting
from pace.wire.addresses import ServerAddress
from pace.wire.frames import HEADER_BYTES, LARGEST_PAYLOAD_BYTES, Frame, FrameKind, WireFault
from pace.wire.handshake import Greeting
from pace.wire.outbox import Outbox, Parcel
from pace.wire.streams import Stream
from pace_fabric.runtime.messages import Message, TransferIntro, read_message

BLOCK_BYTES = 128 << 10
# A larger tensor is not accepted.
_MOST_BYTES = 1 << 36
_UNLIMITED = float((1 << 32) - 1)


class Incoming:
    """A tensor whose blocks are arriving.

    Attributes
    ----------
    data
        Its memory, of which nothing is touched before it arrives: clearing it would take half a second for a
        gigabyte, at every host of a chain one after the other.
    """

    __slots__ = ("began", "blocks", "data", "intro", "missing", "noted_missing", "noted_s")

    def __init__(self, intro: TransferIntro) -> None:
        self.intro = intro
        self.data = np.empty(intro.size_bytes, dtype=np.uint8).data
        self.missing = intro.size_bytes
        self.blocks = 0
        self.began = self.noted_s = time.monotonic()
        self.noted_missing = self.missing

    @property
    def arrived_bytes(self) -> int:
        """Bytes that have arrived."""
        return self.intro.size_bytes - self.missing

    def recent(self) -> tuple[int, float]:
        """Return the bytes that arrived since the last call, or since the first block, and the seconds."""
        now = time.monotonic()
        found = self.noted_missing - self.missing, now - self.noted_s
        self.noted_missing, self.noted_s = self.missing, now
        return found

    @property
    def wire_bytes(self) -> int:
        """Bytes that have arrived, with the frames' headers."""
        return self.arrived_bytes + HEADER_BYTES * self.blocks


class FabricLink:
    """A connection between two processes; it runs once started.

    Parameters
    ----------
    stream
        Both ends know the token of the other; belongs to the link from now on.
    name
        Name of the other end, for messages to people.
    first
        Frames to be written before all others: the welcome that is due to a caller.
    """

    def __init__(self, stream: Stream, *, name: str, first: bytes | None = None) -> None:
        self.name = name
        self.host = ""
        self._stream = stream
        self._incoming: dict[int, Incoming] = {}
        self._over = threading.Event()
        self._on_message: Callable[[FabricLink, Message], None] = lambda _link, _message: None
        self._on_tensor: Callable[[FabricLink, Incoming], None] = lambda _link, _incoming: None
        self._on_blocks: Callable[[FabricLink, Incoming], None] = lambda _link, _incoming: None
        self._on_end: Callable[[FabricLink, str], None] = lambda _link, _reason: None
        self._outbox = Outbox(stream, name=f"pace_fabric.out.{name}", on_loss=self._lost)
        if first is not None:
            self._outbox.put((-2,), Parcel(Frame(kind=FrameKind.WELCOME), memoryview(first), len(first)))
        self._thread = threading.Thread(target=self._read, name=f"pace_fabric.in.{name}", daemon=True)

    def start(
        self,
        on_message: Callable[["FabricLink", Message], None],
        on_end: Callable[["FabricLink", str], None],
        on_tensor: Callable[["FabricLink", Incoming], None] | None = None,
        on_blocks: Callable[["FabricLink", Incoming], None] | None = None,
    ) -> None:
        """Begin to read.

        Parameters
        ----------
        on_end
            Called once, with the reason.
        on_blocks
            Called when a tensor is announced, and for every part of it.
        """
        if on_blocks is not None:
            self._on_blocks = on_blocks
        self._on_message, self._on_end = on_message, on_end
        if on_tensor is not None:
            self._on_tensor = on_tensor
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether the connection has ended."""
        return self._over.is_set()

    def send(self, message: Message) -> None:
        """Write a message before any tensor that is still to be written; raises InvalidUse above 16 MiB."""
        document = message.model_dump_json().encode()
        most = LARGEST_PAYLOAD_BYTES[FrameKind.MESSAGE]
        if len(document) > most:
            raise InvalidUse(f"a message of {len(document):,} bytes; at most {most:,} can be sent")
        self._outbox.put((-1,), Parcel(Frame(kind=FrameKind.MESSAGE), memoryview(document), len(document)))

    def send_tensor(self, intro: TransferIntro, data: memoryview) -> None:
        """Write a tensor after those that were put here before; its memory stays as it is meanwhile."""
        self.send_intro(intro)
        self.send_part(intro.transfer, 0, data)

    def send_intro(self, intro: TransferIntro) -> None:
        """Write the intro of a tensor whose parts follow, after transfers with smaller numbers."""
        document = intro.model_dump_json().encode()
        first = Frame(kind=FrameKind.MESSAGE)
        self._outbox.put((0, intro.transfer, 0), Parcel(first, memoryview(document), len(document)))

    def send_part(self, transfer: int, offset: int, data: memoryview) -> None:
        """Write the bytes from an offset on of a tensor whose intro was sent.

        They are written before those of transfers with larger numbers; their memory stays as it is meanwhile.
        """
        if len(data):
            block = Frame(kind=FrameKind.BLOCK, round=transfer, offset=offset)
            self._outbox.put((0, transfer, 1), Parcel(block, data, BLOCK_BYTES))

    def set_rate(self, bytes_per_s: float | None) -> None:
        """Let the kernel send at most this fast; None for no limit."""
        with contextlib.suppress(OSError):
            self._stream.set_pacing(_UNLIMITED if bytes_per_s is None else max(bytes_per_s, 1024.0))

    def _read(self) -> None:
        reason = f"{self.name} is gone"
        try:
            while True:
                frame = self._stream.read()
                if frame.kind is FrameKind.BYE:
                    reason = f"{self.name} has left"
                    break
                if frame.kind is FrameKind.ABORT:
                    reason = self._stream.read_payload(frame.length).decode(errors="replace")
                    break
                self._take(frame)
        except (EOFError, OSError) as error:
            reason = f"{self.name} is gone: {error}"
        except WireFault as error:
            reason = f"{self.name} breaks the protocol: {error}"
        except Exception as error:  # whatever it is, the owner learns of it
            reason = f"reading from {self.name} failed: {type(error).__name__}: {error}"
        self._end(reason)

    def _take(self, frame: Frame) -> None:
        if frame.kind is FrameKind.PING:
            return
        if frame.kind is FrameKind.BLOCK:
            self._take_block(frame)
            return
        if frame.kind is not FrameKind.MESSAGE:
            raise WireFault(f"a {frame.kind.name} frame in a fabric")
        message = read_message(self._stream.read_payload(frame.length))
        if not isinstance(message, TransferIntro):
            self._on_message(self, message)
            return
        if message.size_bytes > _MOST_BYTES:
            raise WireFault(f"a tensor of {message.size_bytes:,} bytes; at most {_MOST_BYTES:,} are allowed")
        if message.transfer in self._incoming:
            raise WireFault(f"transfer {message.transfer} is under way already")
        incoming = self._incoming[message.transfer] = Incoming(message)
        self._on_blocks(self, incoming)
        if not incoming.missing:
            self._arrived(incoming)

    def _take_block(self, frame: Frame) -> None:
        incoming = self._incoming.get(frame.round)
        if incoming is None:
            raise WireFault(f"a block of transfer {frame.round}, which is not under way")
        if frame.offset != incoming.arrived_bytes or not 0 < frame.length <= incoming.missing:
            raise WireFault(f"{frame.length} bytes from {frame.offset} on are not due in {frame.round}")
        self._stream.read_into(incoming.data[frame.offset : frame.offset + frame.length])
        incoming.missing -= frame.length
        incoming.blocks += 1
        self._on_blocks(self, incoming)
        if not incoming.missing:
            self._arrived(incoming)

    def _arrived(self, incoming: Incoming) -> None:
        del self._incoming[incoming.intro.transfer]
        self._on_tensor(self, incoming)

    def _lost(self, error: Exception) -> None:
        self._stream.shutdown()  # the reader ends and says why
        log.debug("pace.fabric_link_lost", other=self.name, reason=str(error))

    def _end(self, reason: str) -> None:
        if not self._over.is_set():
            self._over.set()
            self._outbox.drop()
            self._on_end(self, reason)

    def finish(self, within_s: float = 2.0, read_s: float = 0.0) -> None:
        """Write what is there, say goodbye, and close: once the other end has closed, or after `read_s`.

        If bytes of the other end arrive after the close, it may lose what it has not read yet.
        """
        self._outbox.finish()
        self._outbox.join(within_s)
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join(read_s)
        self.close()

    def close(self) -> None:
        """End the connection at once."""
        self._over.set()
        self._outbox.drop()
        self._outbox.join(1.0)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(2.0)
        if self._thread is not threading.current_thread():
            self._stream.close()


def connect(
    address: ServerAddress,
    *,
    token: str | None,
    silence_s: float,
    within_s: float,
    hello_s: float | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> FabricLink:
    """Call a process of the fabric; both ends prove that they know the token.

    Parameters
    ----------
    within_s
        How long to try to connect.
    hello_s
        How long the other end may then take at least to introduce itself (default: `silence_s`). With 0 it is
        done or given up within `within_s`.

    Raises
    ------
    CommunicationFailed
        When there is nobody in this time, or it refuses.
    """
    stream = meeting.connect(
        address,
        Greeting(job="fabric", rank=0, size=1, silence_s=silence_s),
        token=token,
        within_s=within_s,
        hello_s=silence_s if hello_s is None else hello_s,
        ssl_context=ssl_context,
    )
    return FabricLink(stream, name=address.name)


def listen(
    place: tuple[str, int],
    on_link: Callable[[FabricLink], None],
    *,
    token: str | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> meeting.Listener:
    """Accept callers who know the token; each becomes a link that `on_link` starts.

    Raises
    ------
    InvalidOptions
        When it may not, or cannot, listen there.
    """

    def let_in(stream: Stream, _greeting: Greeting, welcome: bytes, caller: str) -> None:
        on_link(FabricLink(stream, name=caller, first=welcome))

    return meeting.Listener(*place, let_in, on_refusal=note_refusal, token=token, ssl_context=ssl_context)


def own_address_towards(other: ServerAddress) -> str:
    """Return the address of this host on the way to another; loopback if there is no way now."""
    try:
        family, *_, place = socket.getaddrinfo(other.host, other.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as nothing_is_sent:
            nothing_is_sent.connect(place)
            address: str = nothing_is_sent.getsockname()[0]
            return address
    except OSError:
        return "127.0.0.1"
