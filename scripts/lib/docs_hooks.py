"""Hooks of the documentation's build: no page loads anything from another host."""

import re
from typing import Any

_SCRIPT = re.compile(r'<script src="https?://[^"]*"></script>')
_LOADED = re.compile(r'<(?:script|img|iframe)\b[^>]*\bsrc="https?://|<link\b[^>]*\bhref="https?://')


def on_post_page(output: str, *, page: Any, **_more: Any) -> str:
    """Leave nothing in a page that it would load from another host."""
    return _local(output, page.file.src_uri)


def on_post_template(output_content: str, *, template_name: str, **_more: Any) -> str:
    """Do the same for pages of the theme's own."""
    return _local(output_content, template_name)


def _local(output: str, name: str) -> str:
    """Drop the script that the theme adds for searching pages opened as files; refuse whatever is left."""
    output = _SCRIPT.sub("", output)
    if _LOADED.search(output):
        raise ValueError(f"{name} would load something from another host")
    return output
