"""Options of the benchmarks' and examples' commands say what they are."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


@functools.cache
def options() -> list[tuple[str, str | None, bool]]:
    """Return every option with its place, its help if that is a plain text, and whether it has a default."""
    return list(_read_options())


def _read_options() -> Iterator[tuple[str, str | None, bool]]:
    folders = [
        folder
        for name in ("benchmarks", "examples")
        for folder in (ROOT / name, *ROOT.glob(f"packs/*/{name}"))
    ]
    for path in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="add_argument"), args=[ast.Constant(value=str(name)), *_]
                ):
                    given = {keyword.arg: keyword.value for keyword in node.keywords}
                    text, default = given.get("help"), given.get("default")
                    has_default = default is not None and ast.unparse(default) not in (
                        "None",
                        "True",
                        "False",
                    )
                    if isinstance(text, ast.Constant):
                        yield f"{path.name} {name}", str(text.value), has_default
                    elif text is None:
                        yield f"{path.name} {name}", None, has_default
                case ast.Call(
                    func=ast.Attribute(attr="add_number"),
                    args=[ast.Constant(value=str(name)), _, ast.Constant(value=str(text))],
                ):
                    yield f"{path.name} {name}", text, False  # the parser adds the default


def test_every_option_has_a_phrase() -> None:
    """Of two words or more that is not cut short."""
    found = {name: text for name, text, _ in options()}
    assert len(found) > 50
    assert [name for name, text in found.items() if not text or len(text.split()) < 2] == []
    assert [name for name, text in found.items() if (text or "").rstrip().endswith((",", ":"))] == []
    assert [name for name, text in found.items() if (text or "").startswith(("of ", "("))] == []


def test_every_default_is_in_its_help() -> None:
    """An option that has a default value says which."""
    assert [
        name for name, text, has_default in options() if has_default and "default" not in (text or "")
    ] == []
