"""The class of the command line and its groups, whose commands never overwrite what they read."""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from pace.errors import InvalidOptions
from pace.terminal.reporting import options_called, reported

_OUTPUTS = "pace.outputs"


def writable(ctx: typer.Context, path: Path | None) -> Path | None:
    """Refuse a file that cannot be written, as the callback of an option: before anything is computed."""
    if path is None:
        return None
    ctx.meta.setdefault(_OUTPUTS, []).append(path)
    with reported():
        if path.is_dir():
            number = errno.EISDIR
        elif not path.parent.is_dir():
            number = errno.ENOENT
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            number = errno.EACCES
        else:
            return path
        raise OSError(number, os.strerror(number), str(path))


def _rereadable(ctx: typer.Context, given: Any) -> Any:
    """Copy what can be read only once, such as a pipe, to a file of its name: commands may read it again."""
    if isinstance(given, list | tuple):
        return [_rereadable(ctx, path) for path in given]
    if given is None or given.is_file():
        return given
    with reported():
        copy = Path(ctx.with_resource(tempfile.TemporaryDirectory(prefix="pace-"))) / given.name
        with given.open("rb") as pipe, copy.open("wb") as file:
            shutil.copyfileobj(pipe, file)
    return copy


def file_argument(what: str, **settings: Any) -> Any:
    """Return an argument that names existing files."""
    return typer.Argument(
        help=what, exists=True, dir_okay=False, readable=True, callback=_rereadable, **settings
    )


def file_option(what: str, *names: str, **settings: Any) -> Any:
    """Return an option that names existing files."""
    return typer.Option(
        *names, help=what, exists=True, dir_okay=False, readable=True, callback=_rereadable, **settings
    )


def output_option(what: str, *names: str, **settings: Any) -> Any:
    """Return an option that names a file to write."""
    return typer.Option(*names, help=what, callback=writable, **settings)


def _unwrapped(settings: dict[str, Any]) -> dict[str, Any]:
    """Put each paragraph of a help on one line: typer would print the line breaks of a docstring."""
    paragraphs = re.split(r"\n\s*\n", (settings.get("help") or "").strip())
    return settings | {"help": "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)}


class Command(TyperCommand):
    """A command that refuses to write a file that it reads, or to write one file twice."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**_unwrapped(settings))

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # typer's own context
        """Run the command."""
        outputs: list[Path] = ctx.meta.get(_OUTPUTS, [])
        values = (each if isinstance(each, list) else [each] for each in ctx.params.values())
        given = [path.resolve() for several in values for path in several if isinstance(path, Path)]
        for output in outputs:
            regular = output.is_file() or not output.exists()
            if regular and given.count(output.resolve()) > 1:
                with reported():
                    raise InvalidOptions(f"{output} is named twice: give the output a name of its own")
        options = (each for each in self.params if each.param_type_name == "option")
        with options_called({each.name: max(each.opts, key=len) for each in options if each.name}):
            return super().invoke(ctx)


class CommandGroup(TyperGroup):
    """A group of such commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**_unwrapped(settings))


class CommandLine(typer.Typer):
    """A Typer application or group of such commands."""

    def __init__(self, *, cls: type[TyperGroup] = CommandGroup, **settings: Any) -> None:
        super().__init__(cls=cls, **settings)

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = Command, **settings: Any
    ) -> Callable[[Any], Any]:
        """Add a function as a command."""
        return super().command(name, cls=cls, **settings)
