"""Runs the examples of a page as a reader who pastes all of them would, one after the other.

How a block is run follows from its language and from the comment in front of it, which readers do not see:

- ``bash``: in a folder with the repository's examples. A ``pace serve`` runs until the page ends. ``pace``,
  ``python``, ``torchrun`` and ``accelerate`` are forks of a process that has loaded what they need.
- ``python title="train.py"``: saved under this name, for commands that follow.
- ``python``: run by itself. With ``<!-- in torch.py -->`` in front of it, by two ranks inside this program of
  the folder ``around``.
- ``diff``: as ``python``, what the change leaves.
- ``json``: parsed. ``text``: nothing, or with ``<!-- output -->`` in front what the block before it prints.
- ``<!-- not run: REASON -->`` in front of a block: not run.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pace.packs import packs
from tests.free_ports import free_port
from tests.preloaded import ROOT, Programs

_DOCS = ROOT / "docs"
_PACKS = [ROOT / "packs" / pack.name for pack in packs()]
QUICKSTART = _DOCS / "quickstart.md"
GUIDES = sorted((_DOCS / "guides").glob("*.md"))
# All others with examples.
PAGES = [
    ROOT / "README.md",
    *sorted(_DOCS.glob("*.md")),
    *sorted((_DOCS / "concepts").glob("*.md")),
    *sorted((_DOCS / "reference" / "importers").glob("*.md")),
]
AROUND = Path(__file__).with_name("around")
PLACE = "# The example comes here.\n"

_BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[^\n]*) -->\n+)?(?P<indent> *)```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n"
    r"(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_PORT = re.compile(r"(?<=127\.0\.0\.1:)\d{4,5}|(?<=--port )\d{4,5}")
_LISTENS = re.compile(r"\bpace (?:serve|servers serve|fabric (?:scheduler|serve|daemon|receive))\b")
_LIMIT_S = 600.0  # a machine may be busy with much else


def documentation_pages() -> list[Path]:
    """Return all pages of the site, those of installed packs too."""
    return [page for folder in (ROOT, *_PACKS) for page in sorted((folder / "docs").rglob("*.md"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """An example of a page, and the comment in front of it."""

    language: str
    text: str
    title: str = ""
    note: str = ""

    @property
    def reason(self) -> str:
        """Why it is not run; empty if it is."""
        return self.note.removeprefix("not run: ") if self.note.startswith("not run: ") else ""

    @property
    def around(self) -> str:
        """The program that it is run in; empty if none."""
        return self.note.removeprefix("in ") if self.note.startswith("in ") else ""

    @property
    def prints(self) -> bool:
        """Whether it is what the block before it prints."""
        return self.note == "output"


def blocks(page: Path) -> list[Block]:
    """Return the examples of a page."""
    found = []
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        indent = len(match["indent"])
        text = "".join(line[indent:] if line.strip() else line for line in match["text"].splitlines(True))
        found.append(
            Block(language=match["language"], text=text, title=match["title"] or "", note=match["note"] or "")
        )
    return found


@dataclass(slots=True)
class Reader:
    """Pastes the examples of a page into a folder of their own."""

    folder: Path
    programs: Programs
    outputs: list[str] = field(default_factory=list)
    _ports: dict[str, int] = field(default_factory=dict)
    _listening: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Self:
        """Bring the repository's examples along."""
        for examples in (ROOT / "examples", *(pack / "examples" for pack in _PACKS)):
            if examples.is_dir():
                shutil.copytree(examples, self.folder / examples.relative_to(ROOT))
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop what listens."""
        for process in self._listening:
            _signal(process, signal.SIGTERM)
        for process in self._listening:
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            _signal(process, signal.SIGKILL)

    def port(self, shown: str) -> int:
        """Return the free port that stands for one that a page shows."""
        if shown not in self._ports:
            self._ports[shown] = free_port()
        return self._ports[shown]

    def run(self, block: Block) -> None:
        """Do what the page says of a block."""
        text = _PORT.sub(lambda match: str(self.port(match[0])), block.text)
        if block.prints:
            assert self.outputs[-1] == text
        if block.reason or block.language == "text":
            return
        if block.language == "json":
            json.loads(text)
        elif block.language == "bash":
            self._bash(text)
        elif block.language == "python":
            self._python(block, text)
        elif block.language == "diff":
            self._python(block, _changed(text))
        else:
            raise AssertionError(f"no way to run a block of {block.language or 'no language'}:\n{block.text}")

    def _python(self, block: Block, text: str) -> None:
        name = block.title or "example.py"
        if block.around:
            program = (AROUND / block.around).read_text(encoding="utf-8")
            assert PLACE in program
            text = program.replace(PLACE, text)
        (self.folder / name).write_text(text, encoding="utf-8")
        if block.around:
            self._bash(f"torchrun --nproc-per-node 2 {name}")
        elif not block.title:
            self._bash(f"python {name}")

    def _bash(self, text: str) -> None:
        listens = _LISTENS.search(text) is not None
        environment = {
            **os.environ,
            **self.programs.environment,
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *_PACKS))),
            "PACE_DATABASE_URL": f"sqlite:///{self.folder}/pace.db",
            "PACE_PORT": str(self.port("8080")),
            "PET_MASTER_PORT": str(free_port()),  # torchrun's
            "OMP_NUM_THREADS": "1",
        }
        with (self.folder / f"output-{len(self.outputs)}.txt").open("w+b") as output:
            process = subprocess.Popen(
                ["bash", "-euc", text],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            ports = {int(port) for port in _PORT.findall(text)} or {self.port("8080")}
            if listens:
                self._listening.append(process)
                ready = all(_answers(port, process) for port in ports)
            else:
                try:
                    ready = process.wait(_LIMIT_S) == 0
                except subprocess.TimeoutExpired:
                    ready = False
                finally:
                    _signal(process, signal.SIGKILL)
            output.seek(0)
            said = output.read().decode(errors="replace")
        assert ready, f"{text}\n{'nobody listens' if listens else process.returncode}\n{said}"
        self.outputs.append(said)


def run_examples(page: Path, programs: Programs, folder: Path) -> None:
    """Run all examples of a page in a folder, from first to last."""
    with Reader(folder, programs) as reader:
        for block in blocks(page):
            reader.run(block)


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline and process.poll() in (None, 0):
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                if not (said := connection.recv(64)).startswith(b"HTTP/") or b" 200 " in said:
                    return True
        except OSError:
            pass
        time.sleep(0.2)
    return False


def _changed(difference: str) -> str:
    """Return the new lines of a difference."""
    return "".join(line[1:] for line in difference.splitlines(True) if not line.startswith("-"))


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
