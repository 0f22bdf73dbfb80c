"""One part of the check, in a process of its own.

python -m benchmarks.studies.gpu.part NAME RESULT WORK [--dry-run]
"""

import argparse
import importlib
import sys
from pathlib import Path

from benchmarks.studies.gpu.findings import Findings, Setting


def main() -> None:
    """Run the part; its exceptions end the process and are found in what it printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="name of the part to run")
    parser.add_argument("result", type=Path, help="file for the result (JSON)")
    parser.add_argument("work", type=Path, help="folder for files of the run")
    parser.add_argument(
        "--dry-run", action="store_true", help="run on the CPU, to try the part without a GPU"
    )
    arguments = parser.parse_args()
    findings = Findings(arguments.result)
    part = importlib.import_module(f"benchmarks.studies.gpu.{arguments.name}")
    part.run(findings, Setting(dry=arguments.dry_run, work=arguments.work))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
