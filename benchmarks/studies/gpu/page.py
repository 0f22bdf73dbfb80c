"""The results as one Markdown page: how every part ended, then its facts, its table and its failures."""

from typing import Any


def page(document: dict[str, Any]) -> str:
    """Lay a whole check out."""
    dry = document["dry_run"]
    lines = [
        "# GPU check" + (", dry run: no GPU was used, and its times mean nothing" if dry else ""),
        "",
        f"{document['date']}, `{document['command']}`,"
        f" Python {document['python']}, {document['seconds']:.0f} s.",
        "",
        "| part | status | seconds | what it shows |",
        "| --- | --- | ---: | --- |",
    ]
    lines += [
        f"| [{name}](#{name}) | {found['status']} | {found['seconds']:.1f} | {found['shows']} |"
        for name, found in document["parts"].items()
    ]
    for name, found in document["parts"].items():
        lines += _section(name, found)
    return "\n".join(lines) + "\n"


def _section(name: str, found: dict[str, Any]) -> list[str]:
    lines = ["", f"## {name}", "", f"{found['shows']}: **{found['status']}**."]
    if found["facts"]:
        lines += ["", *(f"- {fact}: {_shown(value)}" for fact, value in found["facts"].items())]
    if found["rows"]:
        lines += ["", *_table(found["rows"])]
    for failure in found["failures"]:
        lines += ["", "```text", failure.strip(), "```"]
    if found.get("output"):
        lines += ["", "The end of its output:", "", "```text", found["output"].strip(), "```"]
    return lines


def _table(rows: list[dict[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    return lines + [f"| {' | '.join(_shown(row.get(column)) for column in columns)} |" for row in rows]


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(_shown(each) for each in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    return str(value).replace("|", "\\|").replace("\n", " ")
