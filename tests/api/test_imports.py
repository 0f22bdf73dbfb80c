"""Other tools' files over HTTP: profiles as the importers make them, faults by name, limits of bodies."""

import functools
import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from pace import load_profile
from pace.api.errors import InvalidFile
from pace.api.workers.imports.unpacking import unpack
from pace.formats.horovod_timeline import read_horovod_profile
from pace.formats.kineto import read_kineto
from pace.formats.reading import FormatWarning
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller, ServiceProcess
from tests.pace.formats.traces import (
    SIZES,
    chakra_trace,
    execution_trace_document,
    horovod_events,
    kineto_document,
    kineto_events,
    write_json,
)

EXAMPLES = Path(__file__).parents[2] / "examples" / "profiles"
TABLE = b"name,forward_ms,backward_ms,parameter_bytes\nfirst,1,2,4000\nsecond,3,4,8000\n"
BYTES = {"Content-Type": "application/octet-stream"}


def send(caller: Caller | ServiceProcess, content: bytes, **question: Any) -> httpx.Response:
    """POST a file; what is asked goes into the query."""
    return caller.http.post("/v1/imports", content=content, params=question, headers=BYTES)


def refused(answer: httpx.Response) -> tuple[int, str, str]:
    """Return an answer's status, the end of its problem's type, and its detail."""
    problem = answer.json()
    return answer.status_code, problem["type"].rpartition(":")[2], problem["detail"]


@ON_SQLITE
def test_a_profile_is_told_from_its_content(service: Caller) -> None:
    """It is stored as POST of the profile stores it; compressed on the way or before, it is the same."""
    content = (EXAMPLES / "vgg16.json").read_bytes()
    answer = send(service, content, filename="anything")
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert (made["format"], made["id"]) == ("profile", load_profile(EXAMPLES / "vgg16.json").sha256)
    assert answer.headers["location"] == f"/v1/profiles/{made['id']}"
    stored = service.http.get(f"/v1/profiles/{made['id']}").json()
    assert stored["profile"]["name"] == made["name"] == "vgg16-b64-w8"
    # Two members behind one another are one file, as gzip itself has it.
    split = gzip.compress(content[:5000]) + gzip.compress(content[5000:])
    twice = service.http.post(
        "/v1/imports",
        content=gzip.compress(split),
        params={"filename": "profile.json.gz"},
        headers={**BYTES, "Content-Encoding": "gzip"},
    )
    assert (twice.status_code, twice.json()["id"]) == (201, made["id"]), twice.text


def tar_of(files: dict[str, bytes], mode: Literal["w", "w:gz"] = "w") -> bytes:
    """Return a tar archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    """Return a zip archive."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def rank_traces(folder: Path, *, shapes: bool = True) -> dict[str, Path]:
    """Write the traces of two ranks, of which the second waits longer; return them by their names."""
    found = {}
    for rank in (0, 1):
        events = kineto_events(shapes=shapes, waiting_us=50.0 * rank)
        told = {"backend": "nccl", "rank": rank, "world_size": 2}
        found[f"rank{rank}.json"] = write_json(
            folder / f"rank{rank}.json", kineto_document(events, distributedInfo=told)
        )
    return found


@ON_SQLITE
def test_traces_of_all_ranks_are_one_profile(service: Caller, tmp_path: Path) -> None:
    """Packed by tar or zip, in any order and compressed or not, they are what the importer makes of them."""
    traces = rank_traces(tmp_path)
    expected = read_kineto(list(traces.values()))
    assert expected.sha256 != read_kineto([traces["rank0.json"]]).sha256
    files = {f"run/{name}": path.read_bytes() for name, path in traces.items()}
    packed = {f"{name}.gz": gzip.compress(content) for name, content in reversed(files.items())}
    litter = {"__MACOSX/run/._rank0.json": b"\0\1", "run/.DS_Store": b"\0", **files}
    for content in (tar_of(files), tar_of(packed, "w:gz"), zip_of(packed), zip_of(litter)):
        answer = send(service, content, filename="run.archive")
        assert answer.status_code == 201, answer.text
        made = answer.json()
        assert (made["format"], made["id"]) == ("kineto", expected.sha256)
    alone = send(service, zip_of({"vgg16.json": (EXAMPLES / "vgg16.json").read_bytes()}))
    assert alone.json()["id"] == load_profile(EXAMPLES / "vgg16.json").sha256


@ON_SQLITE
def test_sizes_that_traces_lack_come_along(service: Caller, tmp_path: Path) -> None:
    """An execution trace, or the list of parameters, is told from the traces that it completes."""
    traces = rank_traces(tmp_path, shapes=False)
    files = {name: path.read_bytes() for name, path in traces.items()}
    shapes = write_json(tmp_path / "et.json", execution_trace_document())
    rows = [[f"p{at}", [size // 4], "torch.float32"] for at, size in enumerate(reversed(SIZES))]
    listed = write_json(tmp_path / "parameters.json", rows)
    with_shapes = read_kineto(list(traces.values()), execution_trace=shapes)
    with pytest.warns(FormatWarning):
        with_list = read_kineto(list(traces.values()), parameters=listed)
    for more, expected in ((shapes, with_shapes), (listed, with_list)):
        answer = send(service, tar_of({**files, more.name: more.read_bytes()}), filename="all.tar")
        assert answer.status_code == 201, answer.text
        assert answer.json()["id"] == expected.sha256
    assert not any("pace-import" in line for line in answer.json()["warnings"])
    assert any(line.startswith("rank0.json: ") for line in answer.json()["warnings"])


@ON_SQLITE
def test_archives_that_are_no_job_are_refused_by_name(service: Caller, tmp_path: Path) -> None:
    """Which file is at fault is said, by its name in the archive."""
    files = {name: path.read_bytes() for name, path in rank_traces(tmp_path).items()}
    vgg16 = (EXAMPLES / "vgg16.json").read_bytes()
    shapes = json.dumps(execution_trace_document()).encode()
    whole = zip_of(files)
    encrypted = bytearray(whole)
    for at in (whole.index(b"PK\x03\x04") + 6, whole.index(b"PK\x01\x02") + 8):
        encrypted[at] |= 1
    for content, words in (
        (tar_of({**files, "a/vgg16.json": vgg16}), "a/vgg16.json: several files must be the Kineto traces"),
        (tar_of({"one.json": vgg16, "two.json": vgg16}), "one.json: several files must be the Kineto traces"),
        (tar_of({**files, "bad.json": b'{"traceEvents": [1]}'}), "bad.json, traceEvents[0]: "),
        (tar_of({"a.json": shapes, "b.json": shapes, **files}), "a.json, b.json: each is a"),
        (tar_of({"a.json": shapes, "p.json": b'[["w", [3], "torch.float32"]]'}), "run: no Kineto trace"),
        (zip_of({}), "run: the archive holds no file"),
        (whole[: len(whole) // 2], "run: the archive is damaged"),
        (bytes(encrypted), "is encrypted, password required"),
    ):
        status, kind, detail = refused(send(service, content, filename="run"))
        assert (status, kind) == (422, "invalid-file"), detail
        assert words in detail
        assert "pace-import" not in detail
    assert refused(send(service, whole, format="layers", filename="run"))[1:] == (
        "invalid-options",
        "format: layers is read from one file, but 2 were sent",
    )
    for name in ("../../etc/rank0.json", "/tmp/rank0.json", "\udcff\n"):
        taken = tar_of({name: files["rank0.json"], "rank1.json": files["rank1.json"]})
        assert send(service, taken).status_code == 201


@functools.cache
def damaged_archives() -> dict[str, bytes]:
    """Return archives whose damage each library tells in a way of its own."""
    made = {}
    for name, method in (("bzip2", zipfile.ZIP_BZIP2), ("lzma", zipfile.ZIP_LZMA)):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", method) as archive:
            archive.writestr("a.json", b'{"traceEvents": []}' * 50)
        content = bytearray(packed.getvalue())
        start = content.index(b"a.json") + len(b"a.json") + 12
        content[start : start + 20] = b"\xff" * 20
        made[name] = bytes(content)
    nameless = bytearray(zip_of({"a": b"{}"}))
    table = nameless.index(b"PK\x01\x02")
    nameless[table + 28], nameless[table + 30] = 0, 1  # its one byte is no name but more information
    made["a name of nothing"] = bytes(nameless)
    long_name = bytearray(tar_of({"x" * 300: b"{}"}))
    long_name[124:136] = b"\x80" + b"\x7f" * 11
    long_name[148:156] = b" " * 8
    long_name[148:156] = b"%06o\0 " % sum(long_name[:512])
    made["a length beyond all numbers"] = bytes(long_name)
    made["a table without end"] = b"PK\x03\x04" + b"PK\x01\x02" * 50_000
    return made


@pytest.mark.parametrize("damage", damaged_archives())
def test_damage_of_every_kind_is_the_senders(damage: str, tmp_path: Path) -> None:
    """Whatever its library raises, the answer says that the file is at fault, not the service."""
    with pytest.raises(InvalidFile):
        unpack(damaged_archives()[damage], "run.zip", tmp_path, 2**20, gzipped=False)


@ON_SQLITE
def test_every_format_is_what_its_importer_makes(service: Caller, tmp_path: Path) -> None:
    """Kineto, Horovod, Chakra and tables, told from content and name, or named."""
    horovod = write_json(tmp_path / "timeline.json", horovod_events())
    kineto = write_json(tmp_path / "trace.json", kineto_document(kineto_events()))
    expected = {
        "horovod-timeline": read_horovod_profile(horovod).sha256,
        "kineto": read_kineto([kineto]).sha256,
    }
    for path, known in ((horovod, "horovod-timeline"), (kineto, "kineto")):
        made = send(service, path.read_bytes(), filename=path.name).json()
        assert (made["format"], made["id"]) == (known, expected[known]), made
        assert made["report"]["gradients"] == made["num_gradients"]
        named = send(service, gzip.compress(path.read_bytes()), filename=path.name, format=known)
        assert named.json()["id"] == expected[known]
    ring = {"workers": 4, "bandwidth_gbps": 10}
    table = send(service, TABLE, filename="layers.csv", **ring).json()
    assert (table["format"], table["num_gradients"], table["num_ops"]) == ("layers", 2, 4)
    assert service.http.get(f"/v1/profiles/{table['id']}").json()["profile"]["workers"] == 4
    graph = (
        b"node1 -- Linear(2) -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0, "
        b"parameter_size=16.0\n"
    )
    assert send(service, graph, filename="graph.txt", **ring).json()["format"] == "pipedream"
    chakra = send(service, chakra_trace(), filename="trace.et", workers=2).json()
    assert (chakra["format"], chakra["num_gradients"]) == ("chakra", 2)


@ON_SQLITE
def test_faults_name_the_field_or_the_place(service: Caller) -> None:
    """What is missing is named as the query names it, what is wrong by the sender's name of the file."""
    needs_rate = send(service, TABLE, filename="layers.csv", workers=4)
    assert refused(needs_rate)[:2] == (422, "invalid-options")
    assert refused(needs_rate)[2].startswith("bandwidth_gbps: ")
    assert refused(send(service, TABLE, filename="a.csv", bandwidth_gbps=1))[2].startswith("workers: ")
    broken = TABLE.replace(b"3,4,8000", b"3,x,8000")
    status, kind, detail = refused(
        send(service, broken, filename="my layers.csv", workers=4, bandwidth_gbps=1)
    )
    assert (status, kind) == (422, "invalid-file")
    assert detail.startswith("my layers.csv, line 3: backward_ms is 'x'")
    assert "pace-import" not in detail
    assert refused(send(service, b"", filename="empty"))[1:] == ("invalid-file", "empty: the file is empty")
    assert refused(send(service, b"hello", filename="note.txt"))[1] == "invalid-file"
    assert refused(send(service, b'{"a": 1}', filename="p.json"))[1] == "invalid-profile"
    assert refused(send(service, TABLE, filename="a.csv", workers=0))[:2] == (422, "invalid-request")
    assert "workers" in refused(send(service, TABLE, filename="a.csv", workers=0))[2]
    assert refused(send(service, TABLE, format="excel"))[1] == "invalid-request"
    assert refused(send(service, b"\x1f\x8b\x08damaged", filename="a.gz"))[1] == "invalid-request"


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01" + bytes(range(256)),
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)),
        b"\x7fELF\x02\x01\x01\0" + bytes(100),
    ],
    ids=["JPEG", "PNG", "program"],
)
@ON_SQLITE
def test_a_picture_is_no_trace(service: Caller, content: bytes) -> None:
    """Bytes that are no text are not yet a Chakra trace; one is known by its content too."""
    refused = send(service, content, filename="picture", workers=2)
    assert (refused.status_code, refused.json()["type"]) == (422, "urn:pace:problem:invalid-file")
    assert "neither its name nor its content tells the format" in refused.json()["detail"]
    assert send(service, chakra_trace(), filename="unnamed", workers=2).json()["format"] == "chakra"


@ON_SQLITE
def test_a_file_does_not_choose_where_it_is_written(service: Caller) -> None:
    """Names with folders in them are names like others."""
    for name in ("../../etc/passwd.csv", "/tmp/x.csv", "..", "a\\..\\b.csv", "name\n.csv"):
        answer = send(service, TABLE, filename=name, format="layers", workers=4, bandwidth_gbps=10)
        assert answer.status_code == 201, answer.text


@ON_SQLITE
def test_other_sites_forms_are_refused(service: Caller) -> None:
    """What a browser sends to another site unasked is no upload."""
    for media_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"):
        answer = service.http.post("/v1/imports", content=TABLE, headers={"Content-Type": media_type})
        assert refused(answer)[:2] == (415, "unsupported-media-type")


def test_imports_are_bounded_as_other_bodies_are(tmp_path: Path) -> None:
    """Bytes as sent, after gzip however deep, what is stored, and scopes; nothing is left on the disk."""
    spool = tmp_path / "spool"
    spool.mkdir()
    limits: dict[str, Any] = {
        "max_body_bytes": 300_000,
        "max_decoded_bytes": 400_000,
        "max_gradients": 40,
        "max_stored_per_tenant_bytes": 12_000,
    }
    with ServiceProcess(tmp_path, auth="required", spool_folder=spool, **limits) as process:
        with process.tenant() as caller:
            assert refused(send(caller, b"x" * 300_001))[:2] == (413, "too-large")
            bomb = gzip.compress(b"[" + b" " * 5_000_000)
            assert refused(send(caller, bomb, filename="t.json.gz"))[:2] == (413, "too-large")
            deep = gzip.compress(gzip.compress(b"[" + b" " * 5_000_000))
            headers = {**BYTES, "Content-Encoding": "gzip"}
            inner = caller.http.post("/v1/imports", content=deep, headers=headers)
            assert refused(inner)[:2] == (413, "too-large")
            for many_bombs in (zip_of({f"{n}.json": b" " * 150_000 for n in range(3)}), zip_of({"t": bomb})):
                assert refused(send(caller, many_bombs))[:2] == (413, "too-large")
            many = json.dumps(horovod_events()).encode()
            assert send(caller, many, filename="t.json").status_code == 201
            wide = b"name,forward_s,backward_s,parameters\n" + b"".join(
                b"layer%d,1,1,4\n" % number for number in range(41)
            )
            ring = {"workers": 2, "bandwidth_gbps": 1}
            assert refused(send(caller, wide, filename="w.csv", **ring))[:2] == (413, "too-large")
            for number in range(2, 12):
                last = send(caller, TABLE, filename="t.csv", **{**ring, "workers": number})
                if last.status_code != 201:
                    break
            assert refused(last)[:2] == (403, "quota-exceeded")
        reader = process.token("readers", "read")
        denied = process.http.post(
            "/v1/imports", content=TABLE, headers={**BYTES, "Authorization": f"Bearer {reader}"}
        )
        assert refused(denied)[:2] == (403, "forbidden")
    assert list(spool.iterdir()) == []


@pytest.mark.parametrize("name", ["resnet50", "seq2seq", "transformer", "vgg16"])
def test_the_pages_examples_are_the_repositorys(name: str) -> None:
    """Those in the wheel and those that the documentation uses do not part."""
    bundled = Path(__file__).parents[2] / "api" / "web" / "examples" / f"{name}.json"
    assert bundled.read_bytes() == (EXAMPLES / f"{name}.json").read_bytes()
