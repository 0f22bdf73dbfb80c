"""``python -m pace``: the command line, where another ``pace`` is first in the path."""

from pace.cli import app

if __name__ == "__main__":
    app()
