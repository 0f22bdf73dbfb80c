"""Messages of every length reach every rank whole."""

from pace.runtime.transports.gloo import GlooTransport
from tests.runtime.launch import run_ranks

LENGTHS = (0, 1, 503, 504, 505, 1008, 5000)


def _message(rank: int, length: int) -> bytes:
    return bytes((rank * 31 + place) % 256 for place in range(length))


def _gather(rank: int, size: int) -> list[bool]:
    transport = GlooTransport(timeout_s=60.0)
    found = []
    for length in LENGTHS:
        for own in (
            [length] * size,
            [length + 7 * other for other in range(size)],
            [0] * (size - 1) + [length],
        ):
            expected = [_message(other, each) for other, each in enumerate(own)]
            found.append(transport.gather(expected[rank]) == expected)
    transport.close(failed=False)
    return found


def test_every_rank_gets_every_message() -> None:
    """Equally long ones, different ones, and one beside empty ones."""
    assert run_ranks(_gather, 3, timeout_s=120) == [[True] * 3 * len(LENGTHS)] * 3
