"""A name means one thing in the whole tree."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from conftest import LONGEST

ROOT = Path(__file__).resolve().parents[1]
PACKS = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("packs/*/pace_*")]
PRODUCT = ("pace", "solver", "api", "runtime", *PACKS)
# The front doors offer one thing over two transports.
SHARED_NAMES = {"DistributedOptimizer"}


def modules() -> Iterator[Path]:
    """Yield every module of the product once; the links inside ``pace`` are not followed."""
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            if not any(parent.is_symlink() for parent in path.parents):
                yield path.relative_to(ROOT)


def named_types(path: Path) -> Iterator[str]:
    """Yield the names of a module's public classes, and of what it calls a set of words or a union."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name) if not name.startswith("_"):
                yield name
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Subscript(value=ast.Name(id="Literal")) | ast.BinOp(op=ast.BitOr()),
            ) if name[0].isupper() and not name.isupper():
                yield name


def test_no_type_has_the_name_of_another() -> None:
    """Two public types of one name would be two ideas with one word, or one idea written twice."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules():
        for name in named_types(ROOT / module):
            homes[name].append(module.as_posix())
    twice = {name: found for name, found in homes.items() if len(found) > 1 and name not in SHARED_NAMES}
    assert twice == {}


def test_the_suite_begins_with_files_that_are_there() -> None:
    """Each of the longest files once, by the name that it has now."""
    assert len(set(LONGEST)) == len(LONGEST)
    assert [name for name in LONGEST if not (ROOT / name).is_file()] == []
