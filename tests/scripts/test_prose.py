"""The check of prose: what it finds in a page, and what it leaves alone."""

from scripts.lib.prose import long_lines, long_sentences, misspelled, terms_of

GLOSSARY = """# Glossary

| word | meaning |
| -- | -- |
| operator (op) | A unit. |
| all-reduce | A sum. |
| reduce-scatter, all-gather | Its halves. |
| max_in_flight | A field. |
"""
LONG = " ".join(["word"] * 31)


def test_the_glossary_says_the_terms() -> None:
    """Terms are the first column's words; names of fields are no terms."""
    assert terms_of(GLOSSARY) == {"operator", "op", "all-reduce", "reduce-scatter", "all-gather"}


def test_long_sentences_are_found_in_lists_too() -> None:
    """In paragraphs and in list items that go on; not in code or tables."""
    text = f"Short. {LONG}.\n\n- An item\n    {LONG}.\n\n```\n{LONG}\n```\n\n| {LONG} |\n"
    assert [number for number, _ in long_sentences(text)] == [1, 3]


def test_long_lines_are_found_but_not_in_tables() -> None:
    """Tables cannot be wrapped; code can."""
    assert [number for number, _ in long_lines(f"| {'x' * 120} |\n{'x' * 110}\n{'x' * 111}\n")] == [3]


def test_terms_have_the_spelling_of_the_glossary() -> None:
    """Another joint or a capital in a heading is found; code, links, classes and the right word are not."""
    terms = terms_of(GLOSSARY)
    wrong = "An allreduce, all gathers and a Reduce Scatter.\n\n## The Operator\n\nWe optimise.\n"
    assert [number for number, _ in misspelled(wrong, terms)] == [1, 1, 1, 3, 5]
    right = "# Operator\n\nAn all-reduce, `allreduce`, [x](allreduce.md), AllReduce(), `All-gathers`.\n"
    assert list(misspelled(right, terms)) == []
