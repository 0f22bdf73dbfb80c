"""Programs of studies find what they need from where they lie."""

import subprocess
import sys
from pathlib import Path

from benchmarks.harness.training.tensorflow_peer import PROGRAM
from benchmarks.studies.papers.throughput_figures import RECORDED

# What is named while the program starts; TensorFlow itself is in an environment of its own, and not here.
TENSORFLOW = "import types\ncompat = types.SimpleNamespace(v1=types.SimpleNamespace())\n"


def test_tensorflows_program_starts_anywhere(tmp_path: Path) -> None:
    """It runs in another environment, and finds the emulated stream of this project by its own place."""
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import runpy; sys.argv[1:] = ['--help']; "
    code += f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
    blocked = "import sys; sys.path[:] = [each for each in sys.path if 'packs' not in each]; "
    started = subprocess.run(
        [sys.executable, "-c", blocked + code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (started.returncode, started.stderr) == (0, "")
    assert "--slack-s" in started.stdout


def test_recorded_steps_are_where_the_study_reads_them() -> None:
    """TensorFlow's recorded steps, on one server and on two."""
    assert len(list(RECORDED.glob("tensorflow-*.json.gz"))) == 2
