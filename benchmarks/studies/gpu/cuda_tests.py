"""Runs the tests marked ``cuda`` with pytest; in a dry run, the engine's on a simulated device as well."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.gpu.part import Findings, Setting

ROOT = Path(__file__).resolve().parents[3]
ON_SIMULATED_DEVICE = (
    "tests/runtime/engine/test_on_device.py::test_the_device_waits_for_a_sum_and_the_host_does_not"
)
# The project's own options ask for plugins that may be missing, and make every warning an error.
OPTIONS = """[pytest]
pythonpath = {root}
markers =
    cuda: needs a CUDA device
    slow: takes more than a few seconds
    netns: makes network namespaces
    horovod: needs Horovod
    races_with_machine: depends on when the machine runs which process
"""
PROCESSES = 4


class Outcomes:
    """A pytest plugin that keeps every test's outcome as soon as it is known."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.passed = 0
        self.skipped = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the outcome of a test, or of a set-up or clean-up that did not pass."""
        if report.when != "call" and report.passed:
            return
        with self._findings.row(test=report.nodeid) as row:
            row["outcome"] = report.outcome
            row["seconds"] = report.duration
            if report.skipped and isinstance(report.longrepr, tuple | list):
                row["reason"] = report.longrepr[2]
        self.passed += report.when == "call" and report.passed
        self.skipped += report.skipped
        self._findings.check(
            not report.failed, f"{report.nodeid} ({report.when}):\n{report.longreprtext[-2500:]}"
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be loaded fails the part."""
        self._findings.check(not report.failed, f"{report.nodeid}:\n{report.longreprtext[-2500:]}")


class OneMore:
    """A pytest plugin that chooses the tests marked ``cuda`` and one that needs no GPU."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out all other tests."""
        items[:] = [
            item
            for item in items
            if item.get_closest_marker("cuda") is not None or item.nodeid == ON_SIMULATED_DEVICE
        ]


def cuda_tests(findings: Findings, setting: Setting) -> None:
    """Run the tests, and fail for each that fails."""
    options = setting.work / "pytest.ini"
    options.write_text(OPTIONS.format(root=ROOT))
    files = sorted(
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.cuda" in path.read_text(encoding="utf-8")
        and not path.is_relative_to(ROOT / "tests" / "scripts")
    )
    findings.fact("files", files)
    command = ["-c", str(options), "--rootdir", str(ROOT), "--import-mode=importlib", "-q"]
    command += ["-p", "no:cacheprovider", "-p", "no:randomly"]
    if not setting.dry and importlib.util.find_spec("xdist") is not None:
        command += ["--numprocesses", str(PROCESSES)]
    # On a GPU by pytest's own option, which reaches xdist's workers as well.
    chosen = [*files, ON_SIMULATED_DEVICE] if setting.dry else ["-m", "cuda", *files]
    outcomes = Outcomes(findings)
    plugins: list[Any] = [outcomes, *([OneMore()] if setting.dry else [])]
    code = pytest.main([*command, *chosen], plugins)
    findings.fact("passed", outcomes.passed)
    findings.fact("skipped", outcomes.skipped)
    findings.check(code == 0, f"pytest ended with {code}")
    findings.check(outcomes.passed > 0, "no test passed")
    findings.check(setting.dry or outcomes.skipped == 0, f"{outcomes.skipped} tests were skipped on a GPU")
