"""``python -m benchmarks.sharded_graphs FOLDER --json OUT``: the study of the same name."""

import sys

from benchmarks.studies.sharded_graphs.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
