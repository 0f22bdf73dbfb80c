"""Every figure and table of the five papers: re-enacted, refuted, or left out; prints Markdown.

python -m benchmarks papers.every_figure [--asynchronous]
"""

import tomllib
from collections import Counter
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.harness.conditions import study_parser

ROWS = Path(__file__).with_name("figures.toml")
DOCS = Path(__file__).parents[3] / "docs"
SYNCHRONOUS = DOCS / "results" / "papers-every-figure.md"
ASYNCHRONOUS = DOCS / "results" / "papers-every-figure-asynchronous.md"
# How many of the papers, in the order of the file, are about synchronous training.
NUM_SYNCHRONOUS = 3
STATUSES = ("re-enacted", "refuted", "left out")

HEAD = """# Every figure of the papers: {title}

You find here what became of each figure, table and further claim of {papers}
that PACE builds on. [The others]({other}) have a page of their own.

- **re-enacted**: our numbers stand beside the paper's, which are in parentheses.
- **refuted**: the claim does not hold; the text says what does.
- **left out**: there is nothing to re-enact, or it needs machines that we do not have.

```
python -m benchmarks papers.every_figure{option}
```

Links lead to more. `benchmarks/studies/papers/quotes.toml` has the place in the paper of each number. We had
the papers' words, not the curves: "No results" is as far as the words say.
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


def markdown(page: Path) -> str:
    """Return one of the two pages."""
    if page == SYNCHRONOUS:
        listed, other, option = papers()[:NUM_SYNCHRONOUS], ASYNCHRONOUS, ""
        title, counted = "synchronous training", "the three papers on synchronous training"
    else:
        listed, other, option = papers()[NUM_SYNCHRONOUS:], SYNCHRONOUS, " --asynchronous"
        title, counted = "asynchronous training", "the two papers on asynchronous training"
    head = HEAD.format(title=title, papers=counted, other=other.name, option=option)
    counts = Counter(row["status"] for paper in listed for row in paper["item"])
    parts = [head, "| " + " | ".join(STATUSES) + " |", "| " + " | ".join("-:" for _ in STATUSES) + " |"]
    parts.append("| " + " | ".join(str(counts[status]) for status in STATUSES) + " |")
    for paper in listed:
        parts += ["", f"## {paper['name']}", "", fill(f"{paper['source']}.", 110), ""]
        for row in paper["item"]:
            status = f"[{row['status']}]({_relative(row['page'])})" if "page" in row else row["status"]
            item = f"- **{row['names']}**, {row['shows']}: {status}. {row['text']}"
            parts.append(fill(item, 110, subsequent_indent="    ", break_on_hyphens=False))
    return "\n".join(parts) + "\n"


def _relative(page: str) -> str:
    return page.removeprefix("results/") if page.startswith("results/") else f"../{page}"


def main() -> None:
    """Print a page."""
    parser = study_parser(__doc__)
    parser.add_argument(
        "--asynchronous",
        action="store_true",
        help="print the papers on asynchronous training (default: the others)",
    )
    asked = parser.parse_args()
    print(markdown(ASYNCHRONOUS if asked.asynchronous else SYNCHRONOUS), end="")
