"""What reader processes make of other tools' files: profiles, by the importers of ``pace.formats``."""

import json
import re
import tempfile
import warnings
import zlib
from pathlib import Path
from typing import Any

from pace.api.errors import ContentTooLarge, InvalidFile, InvalidRequest, NotInstalled
from pace.api.received import ReceivedImport
from pace.api.workers.functions import ReadLimits, receive
from pace.client.page_documents import ImportFormat, ImportQuestion
from pace.documents.collective_costs import AllReduce, RingAllReduce
from pace.documents.profile import Profile, parse_profile
from pace.errors import FormatError, InvalidOptions, InvalidProfile
from pace.formats.import_report import import_report, import_warnings
from pace.formats.reading import FormatWarning

_GZIP_MAGIC = b"\x1f\x8b"
_SNIFFED_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20
_MOST_WARNINGS = 20
_PIPEDREAM = re.compile(rb"^\s*\S+ -- ")
# What a timeline says of its tensors, in the first of its events.
_HOROVOD = (b"NEGOTIATE_", b'"process_name"')


def read_import(body: bytes, gzipped: bool, limits: ReadLimits, question: str) -> ReceivedImport:
    """Make a profile of a file.

    Parameters
    ----------
    question
        JSON of an ``ImportQuestion``.

    Raises
    ------
    InvalidFile, InvalidProfile, InvalidOptions, ContentTooLarge, NotInstalled
        With the importer's message, which names the file as its sender does.
    """
    asked = ImportQuestion.model_validate_json(question)
    content = _unpacked(body, limits.max_bytes) if gzipped else body
    # What was a .gz file before it was sent has one more wrapping, bounded in the same way.
    if content.startswith(_GZIP_MAGIC):
        content = _unpacked(content, limits.max_bytes)
    known = _told(content[:_SNIFFED_BYTES], asked.filename) if asked.format == "auto" else asked.format
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FormatWarning)
        profile = _read(known, content, asked)
    said = [str(each.message) for each in caught if issubclass(each.category, FormatWarning)]
    report = import_report(profile)
    found = {
        "format": known,
        "report": report,
        "warnings": [*said[:_MOST_WARNINGS], *import_warnings(profile)],
    }
    return ReceivedImport(profile=receive(profile, limits), found=json.dumps(found, default=str))


def _unpacked(content: bytes, max_bytes: int) -> bytes:
    """Undo gzip, of however many members."""
    pieces: list[bytes] = []
    size_bytes = 0
    left = content
    try:
        while left:
            member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
            while not member.eof:
                piece = member.decompress(left, _PIECE_BYTES)
                left = member.unconsumed_tail
                size_bytes += len(piece)
                if size_bytes > max_bytes:
                    raise ContentTooLarge(f"the file is larger than {max_bytes} bytes once decompressed")
                if not piece and not left and not member.eof:
                    raise InvalidRequest("the file's gzip stream is cut off")
                pieces.append(piece)
            left = member.unused_data.lstrip(b"\0")  # writers may fill up their last block
    except zlib.error:
        raise InvalidRequest("the file is damaged, or not gzip as it claims") from None
    return b"".join(pieces)


def _told(head: bytes, filename: str) -> ImportFormat:
    """Tell a file's format by its first bytes, and tables by their name."""
    ending = filename.lower().removesuffix(".gz").rpartition(".")[2]
    if ending == "csv":
        return "layers"
    start = head.lstrip()
    if not start:
        raise InvalidFile(f"{filename}: the file is empty")
    if start[:1] == b"[" or (start[:1] == b"{" and any(word in head for word in _HOROVOD[:1])):
        return "horovod-timeline"
    if start[:1] == b"{":
        if b'"traceEvents"' in head or b'"deviceProperties"' in head or b'"schemaVersion"' in head:
            return "kineto"
        if b'"nodes"' in head and b'"schema"' in head:
            raise InvalidFile(
                f"{filename}: this is a PyTorch execution trace, which holds no durations: "
                "`pace import execution-trace` computes them"
            )
        return "profile"
    if _PIPEDREAM.match(start):
        return "pipedream"
    if ending in ("et", "chakra"):
        return "chakra"
    first_line = start.splitlines()[0]
    if b"," in first_line and b"name" in first_line and b"\0" not in first_line:
        return "layers"
    if b"\0" in head or any(byte > 127 or byte < 9 for byte in head[:64]):
        return "chakra"
    raise InvalidFile(f"{filename}: neither its name nor its content tells the format: choose one")


def _read(known: ImportFormat, content: bytes, asked: ImportQuestion) -> Profile:
    if known == "profile":
        profile = parse_profile(content)
        return profile if asked.name is None else profile.replace(name=asked.name)
    safe = re.sub(r"[^\w.() -]", "_", Path(asked.filename.replace("\\", "/")).name).lstrip(".")[-100:]
    with tempfile.TemporaryDirectory(prefix="pace-import-") as folder:
        path = Path(folder) / (safe.removesuffix(".gz") or "file")
        path.write_bytes(content)
        try:
            return _imported(known, path, asked)
        except FormatError as error:
            where = "" if error.position is None else f", {error.position}"
            raise InvalidFile(f"{asked.filename}{where}: {error.reason}") from None
        except (InvalidOptions, InvalidProfile):
            raise
        except ImportError as error:
            raise NotInstalled(f"this format needs {error.name}, which is not installed here") from None


def _imported(known: ImportFormat, path: Path, asked: ImportQuestion) -> Profile:
    named: dict[str, Any] = {"name": asked.name}
    cost = _cost(asked)
    match known:
        case "kineto":
            from pace.formats.kineto import read_kineto

            return read_kineto([path], workers=asked.workers, allreduce=cost, **named)
        case "horovod-timeline":
            from pace.formats.horovod_timeline import read_horovod_profile

            profile = read_horovod_profile(path, workers=asked.workers, **named)
            return profile if cost is None else profile.replace(allreduce=cost)
        case "chakra":
            from pace.formats.chakra import read_chakra

            return read_chakra(path, workers=_workers(asked), allreduce=cost, **named)
        case "layers" | "pipedream":
            from pace.formats.layers import read_layer_csv
            from pace.formats.pipedream import read_pipedream

            read = read_layer_csv if known == "layers" else read_pipedream
            if cost is None:
                raise InvalidOptions("bandwidth_gbps: the file holds no cost of all-reduces, so it is needed")
            return read(path, workers=_workers(asked), allreduce=cost, **named)
        case _:
            raise AssertionError(known)


def _workers(asked: ImportQuestion) -> int:
    if asked.workers is None:
        raise InvalidOptions("workers: the file does not say how many take part, so it is needed")
    return asked.workers


def _cost(asked: ImportQuestion) -> AllReduce | None:
    if asked.bandwidth_gbps is None:
        return None
    return RingAllReduce(bandwidth_bytes_per_s=asked.bandwidth_gbps * 1e9 / 8, latency_s=asked.latency_s)
