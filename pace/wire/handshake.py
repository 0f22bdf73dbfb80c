"""How a worker and a server learn that the other one knows the token, and which job and rank calls.

The server sends a fresh challenge; the worker answers with what it is and an HMAC-SHA256 over the challenge,
a challenge of its own and its words; the server answers that one in turn. A recorded hello is of no use, as
the next challenge is another one.
"""

import hashlib
import hmac
import json
import math
import secrets
from dataclasses import asdict, dataclass
from typing import Any

from pace.errors import CommunicationFailed
from pace.wire.frames import Frame, FrameKind, WireFault
from pace.wire.streams import Stream, TlsStream

_NONCE_BYTES = 32
_MAC_BYTES = 32
_MOST_PINGS = 100
_WORKER, _SERVER = b"pace worker", b"pace server"

MOST_WORKERS = 65_535
_LONGEST_JOB = 128
_TLS_HINT = "; if it uses TLS, give its certificate authority (--tls-ca, or ssl_context= in Python)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """Who calls.

    Attributes
    ----------
    job
        What tells the jobs of a server apart.
    silence_s
        How long either end may say nothing.
    pacing_bytes_per_s
        How fast the server may send to this worker; None for no limit.
    """

    job: str
    rank: int
    size: int
    silence_s: float
    pacing_bytes_per_s: float | None = None


def call(stream: Stream, token: str | None, greeting: Greeting, server: str) -> None:
    """Introduce a worker to a server that it is connected to.

    Raises
    ------
    CommunicationFailed
        When the server refuses, or does not know the token itself.
    WireFault, OSError, EOFError
        When it is no server of ours, or gone.
    """
    try:
        challenge = bytes(_expect(stream, FrameKind.CHALLENGE))
    except (TimeoutError, EOFError, ConnectionResetError) as error:
        hint = "" if isinstance(stream, TlsStream) else _TLS_HINT
        raise CommunicationFailed(f"it did not begin the handshake ({error}){hint}") from error
    if len(challenge) != _NONCE_BYTES:
        raise WireFault("a challenge of another length")
    mine = secrets.token_bytes(_NONCE_BYTES)
    words = json.dumps(asdict(greeting)).encode()
    payload = mine + _mac(token, _WORKER, challenge, mine, words) + words
    stream.write(Frame(kind=FrameKind.HELLO, length=len(payload)), payload)
    answer = bytes(_expect(stream, FrameKind.WELCOME))
    if not hmac.compare_digest(answer, _mac(token, _SERVER, mine, challenge, words)):
        raise CommunicationFailed(f"{server} does not know the token: nothing was sent to it")


def answer(stream: Stream, token: str | None) -> tuple[Greeting, bytes]:
    """Challenge a caller, and return who it is and the payload of the WELCOME that is due to it.

    Raises
    ------
    WireFault
        When it does not know the token or makes no sense.
    """
    challenge = secrets.token_bytes(_NONCE_BYTES)
    stream.write(Frame(kind=FrameKind.CHALLENGE, length=len(challenge)), challenge)
    payload = bytes(_expect(stream, FrameKind.HELLO))
    theirs, mac, words = (
        payload[:_NONCE_BYTES],
        payload[_NONCE_BYTES : _NONCE_BYTES + _MAC_BYTES],
        payload[_NONCE_BYTES + _MAC_BYTES :],
    )
    if not hmac.compare_digest(mac, _mac(token, _WORKER, challenge, theirs, words)):
        raise WireFault("a caller does not know the token")
    return _read_greeting(words), _mac(token, _SERVER, theirs, challenge, words)


def _expect(stream: Stream, kind: FrameKind) -> bytearray:
    frame = stream.read()
    for _ in range(_MOST_PINGS):  # a busy server may give signs of life before its answer
        if frame.kind is not FrameKind.PING:
            break
        frame = stream.read()
    if frame.kind is FrameKind.ABORT:
        reason = stream.read_payload(frame.length).decode(errors="replace")
        raise CommunicationFailed(f"the server refuses: {reason}")
    if frame.kind is not kind:
        raise WireFault(f"a {frame.kind.name} frame where a {kind.name} frame was expected")
    return stream.read_payload(frame.length)


def _mac(token: str | None, role: bytes, *parts: bytes) -> bytes:
    mac = hmac.new((token or "").encode(), role, hashlib.sha256)
    for part in parts:
        mac.update(len(part).to_bytes(4, "big") + part)
    return mac.digest()


def _read_greeting(words: bytes) -> Greeting:
    try:
        fields: Any = json.loads(words)
        greeting = Greeting(**fields)
    except (ValueError, TypeError, RecursionError):
        raise WireFault("a hello that cannot be read") from None
    job, rank, size = greeting.job, greeting.rank, greeting.size
    if not isinstance(job, str) or not 0 < len(job) <= _LONGEST_JOB:
        raise WireFault("a hello without a job")
    if type(rank) is not int or type(size) is not int or not 0 <= rank < size <= MOST_WORKERS:
        raise WireFault(f"a hello from rank {rank!r} of {size!r}")
    pace = greeting.pacing_bytes_per_s
    if not _is_positive(greeting.silence_s) or not (pace is None or _is_positive(pace)):
        raise WireFault("a hello whose times or rates are no positive numbers")
    return greeting


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
