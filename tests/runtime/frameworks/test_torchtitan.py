"""torchtitan, unmodified, trains with one more flag as it does without.

Its device is a stand-in (``torchtitan_on_cpu``). Skipped where torchtitan is not installed, which needs 1 GB.
"""

import json
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.frameworks.programs import ROOT, without

pytestmark = [without("torchtitan"), pytest.mark.slow, pytest.mark.timeout(1800)]

STEPS = 20
SMALL = (
    "--hf-assets-path tokenizer --dataloader.dataset-path data --training.local-batch-size 1 "
    f"--training.seq-len 64 --training.steps {STEPS} --training.mixed-precision-param float32 --debug.seed 1"
)
# CPUs have no CUDA graphs, and torch has a backward pass for them only for one kind of attention.
ON_CPU = (
    "--config graph_trainer_llama3_debugmodel_sdpa --training.disable-cuda-graphs "
    "--compile.disable-passes cudagraph_pass --compile.memory-policy full"
)
FLAG = " --override.imports"
_STEP = re.compile(r"step: +(\d+) +loss: +([\d.]+) +grad_norm: +([\d.]+)")
_COLOR = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and data."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("job")
    choices = random.Random(3)
    texts = [
        " ".join(choices.choices(("stone", "river", "cloud", "gives", "takes"), k=99)) for _ in range(99)
    ]
    (folder / "data").mkdir()
    (folder / "data" / "data.json").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (folder / "tokenizer").mkdir()
    marks = ["<s>", "</s>"]
    tokenizer = Tokenizer(models.WordLevel(unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=marks))
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    (folder / "tokenizer" / "tokenizer_config.json").write_text(
        json.dumps(dict(zip(("bos_token", "eos_token"), marks, strict=True)))
    )
    return folder


def commands() -> list[str]:
    """Return the commands of the guide, each on one line."""
    page = (ROOT / "docs" / "guides" / "train-torchtitan.md").read_text()
    blocks = re.findall(r"```bash\n(torchrun .*?)```", page, re.DOTALL)
    return [block.replace("\\\n", " ").strip() for block in blocks]


def run(folder: Path, command: str) -> str:
    """Run a command of the guide on CPUs; return what it writes, without colors."""
    program = str(Path(__file__).with_name("torchtitan_on_cpu.py"))
    words = shlex.split(
        f"{command} {SMALL}".replace("-m torchtitan.train", program).replace(
            "--config graph_trainer_llama3_debugmodel", ON_CPU
        )
    )
    assert program in words
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *words[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        check=False,
    )
    return _COLOR.sub("", done.stdout)


def losses(output: str) -> dict[str, tuple[str, str]]:
    """Return loss and norm of each step, as printed."""
    found = {step: (loss, norm) for step, loss, norm in _STEP.findall(output)}
    assert len(found) == STEPS, output[-5000:]
    return found


def test_losses_equal_those_without(job: Path) -> None:
    """In all printed digits, with both commands of the guide; the third run finds the plan of the second."""
    plain_flag, with_options = commands()
    own = losses(run(job, plain_flag.partition(FLAG)[0]))
    for command, num_kept in ((plain_flag, 0), (with_options, 1), (with_options, 1)):
        output = run(job, command)
        assert losses(output) == own
        assert len(list(job.glob("plans/*.schedule.json"))) == num_kept
        assert "joint_transformer_block_bucketing" not in output


def test_jobs_without_a_graph_are_refused(job: Path) -> None:
    """In one line, before the first step."""
    command = commands()[0]
    output = run(job, command.replace("graph_trainer.", "").replace("graph_trainer_", ""))
    assert "InvalidUse: this job has no graph that PACE can plan" in output
    output = run(job, commands()[1].replace("memory_gb", "memry_gb"))
    assert "InvalidOptions: no option memry_gb: pace.runtime.torchtitan.planned has memory_gb, plan" in output
    output = run(job, f"{command} --compile.mode jit")
    assert "InvalidUse: PACE plans jobs of torchtitan only with --compile.mode set to aot_fx_trace" in output
