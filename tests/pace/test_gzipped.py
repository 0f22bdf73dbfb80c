"""Documents in gzipped files and in other encodings, and what is refused of them."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pace import InvalidJobProgram, InvalidProfile, check_order, load_profile
from pace.documents import base
from pace.documents.order.job_program import load_job_program
from pace.errors import InvalidDocument
from pace.gzipped import GzipFault, GzipTooLarge, gunzipped
from pace.kinds import load_problem
from tests.api.profiles import layered_profile

PROGRAM = {
    "groups": [{"name": "world", "communicators": [[0, 1]]}],
    "programs": [{"ranks": [0, 1], "threads": [{"operations": [{"op": "all-reduce", "group": "world"}]}]}],
}


@pytest.mark.parametrize(
    ("load", "document"),
    [(load_job_program, PROGRAM), (load_profile, layered_profile(3))],
)
def test_a_gzipped_document_is_the_document(
    load: Callable[[Path], Any], document: dict[str, Any], tmp_path: Path
) -> None:
    """Whatever the name of its file, and in several members."""
    plain, packed = tmp_path / "plain.json", tmp_path / "packed.json"
    text = json.dumps(document).encode()
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text[:20]) + gzip.compress(text[20:]))
    assert load(packed) == load(plain)


def test_a_gzipped_job_program_is_checked(tmp_path: Path) -> None:
    """A file is recognized by what it holds."""
    file = tmp_path / "job.json.gz"
    file.write_bytes(gzip.compress(json.dumps(PROGRAM).encode()))
    assert check_order(file).cannot_hang


def test_damage_names_the_file(tmp_path: Path) -> None:
    """Cut off, overwritten, followed by something else."""
    file = tmp_path / "profile.json.gz"
    whole = gzip.compress(json.dumps(layered_profile(3)).encode())
    for damaged, words in (
        (whole[:-20], "cut off"),
        (whole[:20] + b"\xff" * 20 + whole[40:], "damaged"),
        (whole + b"more", "damaged"),
    ):
        file.write_bytes(damaged)
        with pytest.raises(InvalidProfile, match=f"profile.json.gz: the gzip stream is {words}"):
            load_profile(file)


def test_a_small_file_does_not_become_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds for all members together; a file that is not gzipped has none."""
    half = gzip.compress(b" " * 5_000_000)
    assert gunzipped(half * 2, 10_000_000) == b" " * 10_000_000
    with pytest.raises(GzipTooLarge):
        gunzipped(half * 2, 9_999_999)
    with pytest.raises(GzipFault, match="cut off"):
        gunzipped(half[:-1], 10_000_000)
    monkeypatch.setattr(base, "MOST_UNPACKED_BYTES", 9_999_999)
    file = tmp_path / "job.json"
    file.write_bytes(half * 2)
    with pytest.raises(InvalidJobProgram, match=r"larger than 9999999 bytes once decompressed; .* unpack it"):
        load_job_program(file)
    file.write_bytes(b" " * 10_000_000 + json.dumps(PROGRAM).encode())
    assert load_job_program(file).programs


def test_documents_of_windows_are_read_or_named(tmp_path: Path) -> None:
    """PowerShell writes a byte-order mark, or UTF-16."""
    text = json.dumps(layered_profile(3))
    plain, marked, wide = (tmp_path / name for name in ("plain.json", "marked.json", "wide.json"))
    plain.write_text(text)
    marked.write_text(text, encoding="utf-8-sig")
    wide.write_text(text, encoding="utf-16")
    assert load_profile(marked) == load_profile(plain)
    for kind in (load_profile, load_problem):
        with pytest.raises(InvalidDocument, match=r"wide\.json: this is a text in UTF-16: save it in UTF-8"):
            kind(wide)
