"""Undoes gzip within a limit of bytes: files that hold documents, bodies of requests, uploaded files."""

import zlib

GZIP_MAGIC = b"\x1f\x8b"
_PIECE_BYTES = 1 << 20


class GzipFault(ValueError):
    """What is wrong with a gzip stream, for the caller to raise as an error of its own."""


class GzipTooLarge(GzipFault):
    """The stream unpacks to more than may be."""


def gunzipped(content: bytes, max_bytes: int) -> bytes:
    """Return what a gzip stream of one or several members holds.

    At most `max_bytes` and one piece are in memory before the limit is seen.

    Raises
    ------
    GzipTooLarge
        If it holds more than `max_bytes`.
    GzipFault
        If it is damaged, cut off or followed by something else.
    """
    pieces: list[bytes] = []
    room = max_bytes
    left = content
    try:
        while left:
            member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
            while not member.eof:
                piece = member.decompress(left, _PIECE_BYTES)
                left = member.unconsumed_tail
                room -= len(piece)
                if room < 0:
                    raise GzipTooLarge(f"larger than {max_bytes} bytes once decompressed")
                if not piece and not left and not member.eof:
                    raise GzipFault("the gzip stream is cut off")
                pieces.append(piece)
            left = member.unused_data.lstrip(b"\0")  # writers may fill up their last block
    except zlib.error:
        raise GzipFault("the gzip stream is damaged") from None
    return b"".join(pieces)
