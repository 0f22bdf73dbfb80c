"""The head of an answer goes out with the beginning of its body, and never later than that."""

import asyncio

from pace.api.http.server import JoinedWrites


class _Sent(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.sent[-1:] == [b"closed"]

    def close(self) -> None:
        self.sent.append(b"closed")


def test_a_head_is_sent_with_what_follows() -> None:
    """One send for head and body; those of two answers stay apart."""

    async def run() -> list[bytes]:
        transport, answering = _Sent(), [object()]
        joined = JoinedWrites(transport, asyncio.get_running_loop(), lambda: answering[0])
        for piece in (b"head 1,", b"body 1", b"", b"more 1"):
            joined.write(piece)
        answering[0] = object()
        joined.write(b"head 2,")
        joined.write(b"body 2")
        await asyncio.sleep(0)
        return transport.sent

    assert asyncio.run(run()) == [b"head 1,body 1", b"more 1", b"head 2,body 2"]


def test_a_head_does_not_wait_for_a_body_that_comes_later() -> None:
    """It goes out at the event loop's next turn, or with the end of the connection."""

    async def run() -> list[bytes]:
        transport, answering = _Sent(), [object()]
        joined = JoinedWrites(transport, asyncio.get_running_loop(), lambda: answering[0])
        joined.write(b"head 1")
        assert transport.sent == []
        await asyncio.sleep(0)
        answering[0] = object()
        joined.write(b"head 2")
        joined.close()
        await asyncio.sleep(0)
        assert joined.is_closing()
        return transport.sent

    assert asyncio.run(run()) == [b"head 1", b"head 2", b"closed"]


def test_what_is_no_answer_is_sent_at_once() -> None:
    """A refusal without a request, or a 100 Continue."""

    async def run() -> list[bytes]:
        transport = _Sent()
        joined = JoinedWrites(transport, asyncio.get_running_loop(), lambda: None)
        joined.write(b"HTTP/1.1 100 Continue")
        return transport.sent

    assert asyncio.run(run()) == [b"HTTP/1.1 100 Continue"]
