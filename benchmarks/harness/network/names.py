"""Names of the namespaces that a testbed makes: they tell their owner, so that no other is ever touched."""

import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path

NAMESPACES = Path("/run/netns")
SETTINGS = Path("/etc/netns")

_PATTERN = re.compile(r"pace-testbed-(\d+)-(\d+)-(\d+)-(host\d+|switch)")
_testbeds = itertools.count()


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, told from a later one of the same number by the moment at which it started."""

    pid: int
    started: int

    @classmethod
    def this(cls) -> "Owner":
        """The calling process."""
        started = _start_of(os.getpid())
        assert started is not None
        return cls(os.getpid(), started)

    @property
    def alive(self) -> bool:
        """Whether this process still runs."""
        return _start_of(self.pid) == self.started


def _start_of(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()  # the command's name may hold anything, even brackets
    return None if fields[0] in ("Z", "X") else int(fields[19])


def new_prefix() -> str:
    """Return what the names of one testbed of this process begin with."""
    owner = Owner.this()
    return f"pace-testbed-{owner.pid}-{owner.started}-{next(_testbeds)}"


def owner_of(name: str) -> Owner | None:
    """Return the owner that a namespace's name tells; None for names that no testbed makes."""
    match = _PATTERN.fullmatch(name)
    return Owner(int(match[1]), int(match[2])) if match else None


def left_behind() -> list[str]:
    """Return names of namespaces and settings whose owner is dead."""
    found = {entry.name for folder in (NAMESPACES, SETTINGS) if folder.is_dir() for entry in folder.iterdir()}
    owners = {name: owner_of(name) for name in found}
    return sorted(name for name, owner in owners.items() if owner is not None and not owner.alive)
