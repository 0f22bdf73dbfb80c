"""Finds prose that is hard to read in Markdown pages, for `scripts/prose`.

That is long sentences, long lines, and words that the glossary spells otherwise.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

# Pages whose sentences are held to MOST_WORDS. Lines and spelling are checked in all pages.
HELD = [
    "README.md",
    "CHANGELOG.md",
    "docs/*.md",
    "docs/concepts/*.md",
    "docs/guides/*.md",
    "docs/results/*.md",
    "docs/reference/compatibility.md",
    "docs/reference/documents.md",
    "docs/reference/http-api.md",
    "docs/reference/importers/*.md",
    "docs/reference/log-events.md",
    "docs/reference/metrics.md",
    "docs/reference/settings.md",
    "docs/reference/training-options.md",
    "packs/*/README.md",
    "packs/*/docs/*.md",
    "packs/*/docs/guides/*.md",
    "packs/*/docs/results/*.md",
]
ALL = ["*.md", "docs/**/*.md", "benchmarks/*.md", "examples/*.md", "packs/**/*.md"]
GLOSSARY = Path("docs/concepts/glossary.md")
MOST_WORDS, MOST_CHARACTERS = 30, 110

# A full stop, question mark or exclamation mark that ends a sentence. "1.5" and "pace.runtime" have none.
_END = re.compile(r"(?<=[.?!])[\"')*_`]*\s+(?=[\"'(*_\[]*[A-Z0-9`])|:\s*$")
_ITEM = re.compile(r"\s*([-*]|\d+\.)\s+")
_BRITISH = re.compile(
    r"\b((?:initial|maxim|minim|normal|optim|organ|real|serial|synchron)is(?:e|ed|es|ing|ation)"
    r"|(?:behavi|col|fav|neighb)our\w*|centres?|modelled|modelling)\b",
    re.IGNORECASE,
)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the first line's number and the prose of each paragraph and list item.

    Code, tables and headings are left out.
    """
    start, fenced, listed = 0, False, False
    lines: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        item = _ITEM.match(line)
        listed = bool(item) or (listed and (not line.strip() or line.startswith(" ")))
        fence = line.lstrip().startswith("```")
        code = fenced or fence or (line.startswith("    ") and not listed)
        fenced ^= fence
        other = code or line.lstrip().startswith(("|", "#", "!["))
        if lines and (not line.strip() or item or other):
            yield start, " ".join(lines)
            lines = []
        if line.strip() and not other:
            start = start if lines else number
            lines.append(line[item.end() :] if item else line.strip())


def num_words(sentence: str) -> int:
    """Count words; code is one, and the target of a link is none."""
    plain = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", sentence))
    return len(re.findall(r"[\w'%.,/+-]*\w[\w'%/+-]*", plain))


def long_sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and a complaint for each sentence of over 30 words."""
    for start, paragraph in paragraphs(text):
        for sentence in _END.split(paragraph):
            if sentence and num_words(sentence) > MOST_WORDS:
                yield start, f"{num_words(sentence)} words: {sentence[:90]}..."


def long_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and a complaint for each line of over 110 characters; tables cannot be wrapped."""
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) > MOST_CHARACTERS and not line.lstrip().startswith("|"):
            yield number, f"{len(line)} characters"


def terms_of(glossary: str) -> set[str]:
    """Return the words that a glossary explains: what its tables have in their first columns."""
    cells = re.findall(r"^\| ([^|]+?) \|", glossary, flags=re.MULTILINE)
    names = {name for cell in cells for name in re.split(r", | \(|\)", cell)}
    return {name for name in names if re.fullmatch(r"[a-z]+([- ][a-z]+)*", name)} - {"word"}


def misspelled(text: str, terms: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and a complaint for each term with another joint, or with a capital in a heading."""
    joined = {
        re.compile(rf"(?<![\w./-]){term.replace('-', '[- ]?')}(?:s|d|ing)?(?![\w/-])", re.IGNORECASE): term
        for term in terms
        if "-" in term
    }
    known = {word for term in terms for word in re.split("[- ]", term)}
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        fenced ^= line.lstrip().startswith("```")
        if fenced:
            continue
        plain = re.sub(r"`[^`]*`|\]\([^)]*\)|<[^>]*>|\*[^*]*\*", " ", line)
        for pattern, term in joined.items():
            for found in pattern.findall(plain):
                if not found.lower().startswith(term) and not re.search("[a-z][A-Z]", found):
                    yield number, f"'{found}': the glossary says {term}"
        for found in _BRITISH.findall(plain):
            yield number, f"'{found}': American spelling"
        if line.startswith("#"):
            title = plain.lstrip("# 0123456789.")
            for word in re.findall(r"\b[A-Z][a-z-]+", title.partition(" ")[2]):
                if word.lower() in known:
                    yield number, f"'{word}' in a heading: the glossary says {word.lower()}"


def complaints(page: Path, *, held: bool, terms: set[str]) -> Iterator[tuple[int, str]]:
    """Yield what is wrong in a page."""
    text = page.read_text(encoding="utf-8")
    yield from long_lines(text)
    yield from misspelled(text, terms)
    if held:
        yield from long_sentences(text)


def main(pages: Sequence[str]) -> int:
    """Check all pages, or these, which are then held to all rules; return 1 if anything is wrong."""
    root = Path()
    held = {path for pattern in HELD for path in root.glob(pattern)}
    terms = terms_of(GLOSSARY.read_text(encoding="utf-8"))
    everything = sorted({path for pattern in ALL for path in root.glob(pattern)})
    found = 0
    for page in [Path(page) for page in pages] or everything:
        for number, complaint in sorted(complaints(page, held=bool(pages) or page in held, terms=terms)):
            found += 1
            print(f"{page}:{number}: {complaint}")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
