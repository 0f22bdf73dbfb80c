"""Builds answers from stored bytes, without parsing the stored document."""

import base64
import hashlib
import json
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pace.api.http.headers import header, header_lines
from pace.api.questions.kind import QuestionKind
from pace.api.storage.questions import StoredAnswer
from pace.api.storage.resources import StoredProfile
from pace.client.documents import Problem

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"
# Key in a request's scope of the bytes from which its answer is made while it is sent.
SOURCE_KEY = "pace.source"
_LARGE_BYTES = 2**20
_PIECE_BYTES = 2**18


class _Prepared(Response):
    # Starlette would encode the same headers for every answer.
    def __init__(self, body: bytes, status: int, raw_headers: list[tuple[bytes, bytes]]) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = raw_headers


@dataclass(frozen=True, slots=True)
class PreparedAnswer:
    """A body with its digest, by which clients detect incomplete answers (RFC 9530).

    `lines` has the raw headers as they are sent.
    """

    body: bytes
    digest: str
    raw_headers: tuple[tuple[bytes, bytes], ...]
    lines: bytes

    @classmethod
    def of(cls, body: bytes, media_type: str = JSON) -> "PreparedAnswer":
        """Compute the digest of a body."""
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        headers = (
            (b"content-type", media_type.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"content-digest", f"sha-256=:{digest}:".encode()),
            (b"etag", f'"{digest[:32]}"'.encode()),
            (b"cache-control", b"private, no-cache"),
        )
        return cls(body, digest, headers, header_lines(headers))

    @property
    def etag(self) -> str:
        """A strong entity tag: equal bodies, equal tags."""
        return f'"{self.digest[:32]}"'

    def response(self, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        """Return a response with this body."""
        named = [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
        return _Prepared(self.body, status, [*self.raw_headers, *named])

    def response_to(self, request: Request, headers: Mapping[str, str] | None = None) -> Response:
        """Return the response to a GET: 304 without a body if the caller has this body already."""
        asked = header(request.scope, b"if-none-match")
        if asked is not None and _matches(asked, self.etag):
            same = {"ETag": self.etag, "Cache-Control": "private, no-cache", **(headers or {})}
            return Response(status_code=304, headers=same)
        return self.response(headers=headers)


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """A large body, produced piece by piece from stored bytes for every reader."""

    stored: bytes
    pieces: Callable[[], Iterator[bytes]]
    size_bytes: int
    digest: str

    @classmethod
    def of(cls, stored: bytes, pieces: Callable[[], Iterator[bytes]]) -> "StreamedAnswer":
        """Read the body once for its length and digest."""
        digest, size_bytes = hashlib.sha256(), 0
        for piece in pieces():
            digest.update(piece)
            size_bytes += len(piece)
        return cls(stored, pieces, size_bytes, base64.b64encode(digest.digest()).decode())

    def response_to(self, request: Request) -> Response:
        """Return the response to a GET: 304 without a body if the caller has this body already."""
        same = {"ETag": f'"{self.digest[:32]}"', "Cache-Control": "private, no-cache"}
        asked = request.headers.get("if-none-match")
        if asked is not None and _matches(asked, same["ETag"]):
            return Response(status_code=304, headers=same)
        request.scope[SOURCE_KEY] = self.stored
        whole = {"Content-Length": str(self.size_bytes), "Content-Digest": f"sha-256=:{self.digest}:"}
        return StreamingResponse(self.pieces(), headers={**same, **whole}, media_type=JSON)


def question_answer(kind: QuestionKind, stored: StoredAnswer) -> PreparedAnswer:
    """Return the resource of an answered question."""
    head = {name: getattr(stored, column) for name, column in kind.head}
    # As in lists of them.
    head["created_at"] = stored.created_at.isoformat().replace("+00:00", "Z")
    return PreparedAnswer.of(_splice(head, kind.content, stored.document))


def profile_answer(stored: StoredProfile) -> "PreparedAnswer | StreamedAnswer":
    """Return the resource of a profile; a large one is never in memory as a whole."""
    head = stored.summary.model_dump(mode="json")
    if stored.summary.size_bytes <= _LARGE_BYTES:
        return PreparedAnswer.of(_splice(head, "profile", zlib.decompress(stored.document)))
    return StreamedAnswer.of(stored.document, _spliced(head, "profile", stored.document))


def document_answer(document: BaseModel) -> PreparedAnswer:
    """Return any other document."""
    return PreparedAnswer.of(document.model_dump_json().encode())


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a problem document."""
    body = problem.model_dump_json(exclude_none=True).encode()
    return Response(body, problem.status, media_type=PROBLEM_JSON, headers=dict(headers or {}))


class AnswerCache:
    """A cache of answers that were read from storage recently.

    Parameters
    ----------
    max_bytes
        Size beyond which the least recently used answers are dropped.
    ttl_s
        Seconds after which an answer is read again, because another service process may have deleted it.
    """

    def __init__(self, max_bytes: int, ttl_s: float) -> None:
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        # None for deleted answers: one that was read before the deletion may arrive here after it.
        self._answers: OrderedDict[tuple[str, str], tuple[float, PreparedAnswer | None]] = OrderedDict()
        self._held_bytes = 0

    def get(self, tenant: str, resource_id: str) -> PreparedAnswer | None:
        """Return a fresh answer, or None."""
        until, answer = self._answers.get((tenant, resource_id), (0.0, None))
        if until < time.monotonic():
            return None
        self._answers.move_to_end((tenant, resource_id))
        return answer

    def put(self, tenant: str, resource_id: str, answer: PreparedAnswer) -> PreparedAnswer:
        """Keep an answer, unless it was dropped a moment ago; return it, or the equal one from before.

        Slow clients may still read the one from before, and then its bytes are in memory once.
        """
        until, held = self._answers.get((tenant, resource_id), (0.0, answer))
        if held is None and until >= time.monotonic():
            return answer
        if held is not None and held.digest == answer.digest:
            answer = held
        self._set(tenant, resource_id, answer)
        return answer

    def drop(self, tenant: str, resource_id: str) -> None:
        """Drop an answer, and refuse to keep it for a moment."""
        self._set(tenant, resource_id, None)

    def _set(self, tenant: str, resource_id: str, answer: PreparedAnswer | None) -> None:
        before = self._answers.pop((tenant, resource_id), None)
        if before is not None:
            self._held_bytes -= _held_bytes(before[1])
        self._answers[tenant, resource_id] = (time.monotonic() + self._ttl_s, answer)
        self._held_bytes += _held_bytes(answer)
        while self._held_bytes > self._max_bytes:
            _, (_, dropped) = self._answers.popitem(last=False)
            self._held_bytes -= _held_bytes(dropped)


def _held_bytes(answer: PreparedAnswer | None) -> int:
    return 1000 if answer is None else 1000 + len(answer.body)


def _splice(head: dict[str, Any], name: str, document: bytes) -> bytes:
    return json.dumps(head)[:-1].encode() + f', "{name}": '.encode() + document.rstrip() + b"}\n"


def _spliced(head: dict[str, Any], name: str, compressed: bytes) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        yield json.dumps(head)[:-1].encode() + f', "{name}": '.encode()
        decompressor = zlib.decompressobj()
        left = compressed
        while left and not decompressor.eof:
            yield decompressor.decompress(left, _PIECE_BYTES)
            left = decompressor.unconsumed_tail
        yield decompressor.flush() + b"}\n"

    return pieces


def _matches(if_none_match: str, etag: str) -> bool:
    tags = (tag.strip().removeprefix("W/") for tag in if_none_match.split(","))
    return any(tag in ("*", etag) for tag in tags)
