"""Converts files of other tools to profiles in reader processes, by the importers of ``pace.formats``."""

import json
import tempfile
import warnings
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pace.api.errors import InvalidFile, NotInstalled
from pace.api.questions.kind import ReadLimits, ReceivedProfile
from pace.api.questions.reading import receive
from pace.api.workers.imports.unpacking import UnpackedFile, unpack
from pace.client.page_documents import ImportFormat, ImportQuestion
from pace.documents.collective_costs import AllReduce, RingAllReduce
from pace.documents.profile import Profile, parse_profile
from pace.errors import FormatError, InvalidOptions, InvalidProfile
from pace.formats.any_format import NO_COST, NO_WORKERS, read_as
from pace.formats.import_report import import_report, import_warnings
from pace.formats.reading import FormatWarning
from pace.formats.recognize import KnownFormat, format_of

_MOST_WARNINGS = 20
# What the query must give, by what the importer lacks.
_MISSING = {
    NO_COST: "bandwidth_gbps: the file holds no cost of all-reduces, so it is needed",
    NO_WORKERS: "workers: the file does not say how many take part, so it is needed",
}

FileRole = Literal["rank", "execution-trace", "parameters"]
_SIZES: tuple[FileRole, ...] = ("execution-trace", "parameters")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedImport:
    """A valid profile, and the JSON of what the importer found, as ``ImportResource`` answers it."""

    profile: ReceivedProfile
    found: str


def read_import(body: bytes, gzipped: bool, limits: ReadLimits, question: str) -> ReceivedImport:
    """Make a profile of a file, or of several in an archive: the Kineto traces of one job's ranks.

    Parameters
    ----------
    question
        JSON of an ``ImportQuestion``.

    Raises
    ------
    InvalidFile, InvalidRequest, InvalidProfile, InvalidOptions, ContentTooLarge, NotInstalled
        With the importer's message, which names the file as its sender does.
    """
    asked = ImportQuestion.model_validate_json(question)
    with (
        warnings.catch_warnings(record=True) as caught,
        tempfile.TemporaryDirectory(prefix="pace-import-") as made,
    ):
        warnings.simplefilter("always", FormatWarning)
        folder = Path(made)
        files = unpack(body, asked.filename, folder, limits.max_bytes, gzipped=gzipped)
        known, profile = _read(files, asked)
    said = [str(each.message) for each in caught if issubclass(each.category, FormatWarning)]
    for file in files:  # the sender's names, not ours
        said = [line.replace(str(file.path), file.name) for line in said]
    found = {
        "format": known,
        "report": import_report(profile),
        "warnings": [*said[:_MOST_WARNINGS], *import_warnings(profile)],
    }
    return ReceivedImport(profile=receive(profile, limits), found=json.dumps(found, default=str))


def _known(file: UnpackedFile) -> KnownFormat:
    """Recognize a file's format by its first bytes; tables and Chakra traces also by their name."""
    try:
        return format_of(file.head(), file.name, file.name)
    except FormatError as error:
        raise InvalidFile(f"{file.name}: {error.reason}") from None


def _told(file: UnpackedFile) -> ImportFormat:
    """Return the format of a file that makes a profile by itself."""
    told = _known(file)
    if told == "execution-trace":
        raise InvalidFile(
            f"{file.name}: this is a PyTorch execution trace, which holds no durations: "
            "send it together with a Kineto trace, or let `pace import execution-trace` compute them"
        )
    if told == "parameters" or told == "cost-log":
        what = "a list of parameters" if told == "parameters" else "a log of all-reduces"
        raise InvalidFile(f"{file.name}: this is {what}, which makes no profile by itself")
    return told


def _read(files: list[UnpackedFile], asked: ImportQuestion) -> tuple[ImportFormat, Profile]:
    names = {str(each.path): each.name for each in files}
    try:
        if len(files) > 1:
            return "kineto", _job(files, asked)
        (file,) = files
        known = _told(file) if asked.format == "auto" else asked.format
        return known, _imported(known, file.path, asked)
    except FormatError as error:
        name = names.get(str(error.path), asked.filename)
        where = "" if error.position is None else f", {error.position}"
        reason = error.reason
        for path, sent_as in names.items():  # another file of the same job
            reason = reason.replace(path, sent_as)
        raise InvalidFile(f"{name}{where}: {reason}") from None
    except (InvalidOptions, InvalidProfile, InvalidFile):
        raise
    except ImportError as error:
        raise NotInstalled(f"this format needs {error.name}, which is not installed here") from None


def _job(files: list[UnpackedFile], asked: ImportQuestion) -> Profile:
    """Make a profile from the traces of several ranks, and from the file with the sizes that they lack."""
    from pace.formats.kineto import read_kineto

    if asked.format not in ("auto", "kineto"):
        raise InvalidOptions(f"format: {asked.format} is read from one file, but {len(files)} were sent")
    parts: defaultdict[FileRole, list[UnpackedFile]] = defaultdict(list)
    for file in files:
        parts[_role(file)].append(file)
    for role in _SIZES:
        if len(parts[role]) > 1:
            named = ", ".join(each.name for each in parts[role])
            raise InvalidFile(
                f"{named}: each is a {role} file, but one is for all ranks: send only one of them"
            )
    if not parts["rank"]:
        raise InvalidFile(f"{asked.filename}: no Kineto trace is among the files")
    execution_trace, parameters = (parts[role][0].path if parts[role] else None for role in _SIZES)
    return read_kineto(
        [each.path for each in parts["rank"]],
        execution_trace=execution_trace,
        parameters=parameters,
        workers=asked.workers,
        allreduce=_cost(asked),
        name=asked.name,
    )


def _role(file: UnpackedFile) -> FileRole:
    match _known(file):
        case "kineto":
            return "rank"
        case "execution-trace" | "parameters" as role:
            return role
        case other:
            raise InvalidFile(
                f"{file.name}: several files must be the Kineto traces of one job's ranks, with an execution "
                f"trace or a list of parameters if they lack sizes; this one is a {other}"
            )


def _imported(known: ImportFormat, path: Path, asked: ImportQuestion) -> Profile:
    if known == "profile":
        profile = parse_profile(path.read_bytes())
        return profile if asked.name is None else profile.replace(name=asked.name)
    try:
        return read_as(known, path, workers=asked.workers, allreduce=_cost(asked), name=asked.name)
    except FormatError as error:
        if error.reason in _MISSING:
            raise InvalidOptions(_MISSING[error.reason]) from None
        raise


def _cost(asked: ImportQuestion) -> AllReduce | None:
    if asked.bandwidth_gbps is None:
        return None
    return RingAllReduce(bandwidth_bytes_per_s=asked.bandwidth_gbps * 1e9 / 8, latency_s=asked.latency_s)
