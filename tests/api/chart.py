"""Renders the Helm chart's templates, for want of Helm: what they use of Go's template language, strictly."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

_WORD = re.compile(r'"[^"]*"|\S+')


def render(chart: Path, **changes: Any) -> list[dict[str, Any]]:
    """Return the documents of a chart; `changes` replace whole entries of its values."""
    values = yaml.safe_load((chart / "values.yaml").read_text()) | changes
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    root = {
        "Values": values,
        "Chart": {"Name": about["name"], "AppVersion": about["appVersion"]},
        "Release": {"Name": "ours", "Service": "Helm"},
    }
    parts: dict[str, list[Any]] = {}
    _parse(_pieces((chart / "templates" / "_helpers.tpl").read_text()), parts)
    documents = []
    for path in sorted((chart / "templates").glob("*.yaml")):
        text = _Template(parts, root).run(_parse(_pieces(path.read_text()), parts), {})
        document = yaml.safe_load(text)
        if document is not None:
            documents.append(document)
    return documents


def _pieces(text: str) -> list[tuple[bool, str]]:
    """Take text apart into (is it an action?, content); a dash trims the space beside it."""
    pieces: list[tuple[bool, str]] = []
    trim = False
    for part in re.split(r"(\{\{.*?\}\})", text, flags=re.DOTALL):
        if part.startswith("{{"):
            if part.startswith("{{-") and pieces:
                pieces[-1] = (pieces[-1][0], pieces[-1][1].rstrip() if not pieces[-1][0] else pieces[-1][1])
            trim = part.endswith("-}}")
            pieces.append((True, part[2:-2].strip("-").strip()))
        else:
            pieces.append((False, part.lstrip() if trim else part))
            trim = False
    return pieces


def _parse(pieces: list[tuple[bool, str]], parts: dict[str, list[Any]]) -> list[Any]:
    """Return a tree: texts, and (action, children) for what encloses something."""
    stack: list[tuple[str, list[Any]]] = [("", [])]
    for is_action, content in pieces:
        if not is_action:
            stack[-1][1].append(content)
        elif content.partition(" ")[0] in ("if", "range", "with", "define"):
            stack.append((content, []))
        elif content == "end":
            head, children = stack.pop()
            if head.startswith("define "):
                parts[json.loads(head.partition(" ")[2])] = children
            else:
                stack[-1][1].append((head, children))
        else:
            stack[-1][1].append((content, None))
    ((_, tree),) = stack
    return tree


class _Template:
    def __init__(self, parts: dict[str, list[Any]], root: dict[str, Any]) -> None:
        self._parts = parts
        self._root = root
        self._functions: dict[str, Callable[..., Any]] = {
            "quote": lambda value: json.dumps(str(value)),
            "toYaml": lambda value: yaml.safe_dump(value).rstrip(),
            "toJson": lambda value: json.dumps(value, separators=(",", ":"), sort_keys=True),
            "sha256sum": lambda value: hashlib.sha256(value.encode()).hexdigest(),
            "nindent": lambda width, text: "\n" + "\n".join(" " * width + line for line in text.splitlines()),
            "include": lambda name, _: self.run(self._parts[name], {}),
            "not": lambda value: not value,
            "gt": lambda value, other: value > other,
            "int": int,
            "add": lambda value, other: value + other,
            "ternary": lambda value, other, chosen: value if chosen else other,
        }

    def run(self, tree: list[Any], variables: dict[str, Any]) -> str:
        text = ""
        for node in tree:
            if isinstance(node, str):
                text += node
                continue
            head, children = node
            if children is None:
                value = self._value(head, variables)
                assert isinstance(value, str | int | float), f"{{{{ {head} }}}} is no text: {value!r}"
                text += str(value)
            elif head.startswith("if "):
                text += self.run(children, variables) if self._value(head[3:], variables) else ""
            elif head.startswith("with "):
                found = self._value(head[5:], variables)
                text += self.run(children, {**variables, ".": found}) if found else ""
            elif ":=" not in head:
                for value in self._value(head.removeprefix("range "), variables):
                    text += self.run(children, {**variables, ".": value})
            else:
                names, _, what = head.removeprefix("range ").partition(":=")
                first, second = (name.strip() for name in names.split(","))
                found = self._value(what.strip(), variables)
                items = sorted(found.items()) if isinstance(found, dict) else enumerate(found)
                for key, value in items:
                    text += self.run(children, {**variables, first: key, second: value})
        return text

    def _value(self, pipeline: str, variables: dict[str, Any]) -> Any:
        value: tuple[Any, ...] = ()
        while inner := re.search(r"\(([^()]*)\)", pipeline):
            pipeline = pipeline.replace(inner[0], json.dumps(self._value(inner[1], variables)))
        for stage in pipeline.split("|"):
            name, *words = _WORD.findall(stage)
            if name in self._functions:
                arguments = [self._word(word, variables) for word in words]
                value = (self._functions[name](*arguments, *value),)
            else:
                assert not words, stage
                value = (self._word(name, variables),)
        return value[0]

    def _word(self, word: str, variables: dict[str, Any]) -> Any:
        if word == "." and "." in variables:
            return variables["."]
        if word.startswith('"') or word.isdecimal():
            return json.loads(word)
        if word.startswith("$"):
            return variables[word]
        found: Any = self._root
        for part in word.split("."):
            found = found[part] if part else found
        return found
