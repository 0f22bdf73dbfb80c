"""Every figure and table of the five papers: re-enacted, refuted, or left out; prints Markdown.

python -m benchmarks papers.every_figure
"""

import tomllib
from collections import Counter
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.harness.conditions import study_parser

ROWS = Path(__file__).with_name("figures.toml")
DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "results" / "papers-every-figure.md"
STATUSES = ("re-enacted", "refuted", "left out")

HEAD = """# Every figure of the five papers

```
python -m benchmarks papers.every_figure
```

PACE builds on five papers. This page lists their figures and tables, and claims that have no figure.

- **re-enacted**: our numbers stand beside the paper's, here or on the page that the row links to.
- **refuted**: the claim does not hold; the row says what does.
- **left out**: there is nothing to re-enact, or it needs machines that we do not have.

The curves of figures were not at hand, only what the papers say about them in words.
"""


def papers() -> list[dict[str, Any]]:
    """Return the papers with their rows.

    Raises
    ------
    ValueError
        If a row has no reason, another status, or links to a page that is not there.
    """
    found: list[dict[str, Any]] = tomllib.loads(ROWS.read_text(encoding="utf-8"))["paper"]
    for paper in found:
        for row in paper["item"]:
            if row["status"] not in STATUSES or not row["text"]:
                raise ValueError(f"{paper['name']}, {row['names']}: status {row['status']}, or no text")
            if "page" in row and not (DOCS / row["page"]).is_file():
                raise ValueError(f"{paper['name']}, {row['names']}: no page {row['page']}")
            if row["status"] == "re-enacted" and "page" not in row:
                raise ValueError(f"{paper['name']}, {row['names']}: re-enacted on which page?")
    return found


def markdown() -> str:
    """Return the page."""
    listed = papers()
    counts = Counter(row["status"] for paper in listed for row in paper["item"])
    parts = [HEAD, "| " + " | ".join(STATUSES) + " |", "| " + " | ".join("-:" for _ in STATUSES) + " |"]
    parts.append("| " + " | ".join(str(counts[status]) for status in STATUSES) + " |")
    for paper in listed:
        parts += ["", f"## {paper['name']}", "", fill(f"{paper['source']}.", 110), ""]
        parts += ["| what | shows | status | outcome or reason |", "| -- | -- | -- | -- |"]
        for row in paper["item"]:
            link = f" [Page]({_relative(row['page'])})" if "page" in row else ""
            parts.append(f"| {row['names']} | {row['shows']} | {row['status']} | {row['text']}{link} |")
    return "\n".join(parts) + "\n"


def _relative(page: str) -> str:
    return page.removeprefix("results/") if page.startswith("results/") else f"../{page}"


def main() -> None:
    """Print the page."""
    study_parser(__doc__).parse_args()
    print(markdown(), end="")
