"""Options of the benchmarks' and examples' commands say what they are."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def options() -> Iterator[tuple[str, str | None]]:
    """Yield every option with its place, and its help if that is a plain text."""
    for path in (
        path for folder in ("benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.py"))
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="add_argument"), args=[ast.Constant(value=str(name)), *_]
                ):
                    given = {keyword.arg: keyword.value for keyword in node.keywords}
                    text = given.get("help")
                    if isinstance(text, ast.Constant):
                        yield f"{path.name} {name}", str(text.value)
                    elif text is None:
                        yield f"{path.name} {name}", None


def test_every_option_has_a_phrase() -> None:
    """Of two words or more that is not cut short."""
    found = dict(options())
    assert len(found) > 50
    assert [name for name, text in found.items() if not text or len(text.split()) < 2] == []
    assert [name for name, text in found.items() if (text or "").rstrip().endswith((",", ":"))] == []
