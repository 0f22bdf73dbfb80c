"""Runs a study: ``python -m benchmarks NAME [OPTIONS]``. Without a name, lists the studies.

A study is a module in ``benchmarks.studies``, here or in a pack, with a function ``main``. If this machine
lacks what it needs, the command says so in one line and exits with 3.
"""

import ast
import importlib
import signal
import sys
from pathlib import Path

import benchmarks.studies
from benchmarks.harness.prerequisites import Unavailable, missing_package


def studies() -> dict[str, tuple[str, Path]]:
    """Return module and file of each study by its name."""
    found = {}
    for folder in map(Path, benchmarks.studies.__path__):
        for path in folder.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if "\ndef main(" in text and "\nif __name__" not in text:  # else a program that a study starts
                parts = path.relative_to(folder).with_suffix("").parts
                module = ".".join(("benchmarks", "studies", *parts))
                found[".".join(part for part in parts if part != "__main__")] = module, path
    return dict(sorted(found.items()))


def summary(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def main() -> int:
    """Run the study that the first argument names."""
    known = studies()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the list may go to `head`
        print(__doc__)
        for each, (_, path) in known.items():
            print(f"{each:24} {summary(path)}")
        return 0
    if name not in known:
        print(f'benchmarks: no study "{name}"; there are {", ".join(known)}', file=sys.stderr)
        return 2
    sys.argv = [f"python -m benchmarks {name}", *sys.argv[2:]]
    try:
        return importlib.import_module(known[name][0]).main() or 0
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("benchmarks", "pace"):
            raise
        reason = str(missing_package(package, error))
    except Unavailable as error:
        reason = str(error)
    print(f"{name}: {reason}", file=sys.stderr)
    return 3


if __name__ == "__main__":
    sys.exit(main())
