"""The tree can be found one's way in: rooms stay small, and a name means one thing."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("pace", "solver", "api", "runtime")
MOST_MODULES = 16
# A format is a file or three of its own.
LARGE_ROOMS = {"pace/formats"}
# The front doors offer one thing over two transports.
SHARED_NAMES = {"DistributedOptimizer"}


def modules() -> Iterator[Path]:
    """Yield every module of the product once; the links inside ``pace`` are not followed."""
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            if not any(parent.is_symlink() for parent in path.parents):
                yield path.relative_to(ROOT)


def test_rooms_are_small() -> None:
    """A folder's listing can be read at a glance."""
    rooms: defaultdict[str, int] = defaultdict(int)
    for module in modules():
        rooms[module.parent.as_posix()] += 1
    assert sum(rooms.values()) > 150
    large = {room: count for room, count in rooms.items() if count > MOST_MODULES}
    assert large.keys() <= LARGE_ROOMS, large


def test_no_class_name_twice() -> None:
    """Two public classes of one name would be two ideas with one word, or one idea written twice."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules():
        for node in ast.parse((ROOT / module).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module.as_posix())
    twice = {name: found for name, found in homes.items() if len(found) > 1 and name not in SHARED_NAMES}
    assert twice == {}
