"""The examples of docs/throughput.md run, and what the page says of their results is so."""

import re
from pathlib import Path
from typing import Any

import pytest

from pace import parse_steps

PAGE = Path(__file__).parents[3].joinpath("docs", "throughput.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}


def example(section: str) -> dict[str, Any]:
    """Run the section's program and return its variables."""
    (program,) = re.findall(r"```python\n(.*?)```", SECTIONS[section], flags=re.DOTALL)
    variables: dict[str, Any] = {}
    exec(compile(program, section, "exec"), variables)
    return variables


def test_the_document() -> None:
    """The page's document is one."""
    (text,) = re.findall(r"```json\n(.*?)```", SECTIONS["The steps document"], flags=re.DOTALL)
    assert parse_steps(text).name == "one layer"


def test_reinforcement_learning() -> None:
    """The trainer is saturated by some eleven rollout workers; rare pulls make samples older."""
    answers = example("Asynchronous reinforcement learning")["answers"]
    assert {every: answer.curves[0].knee_workers for every, answer in answers.items()} == {1: 16, 4: 16}
    at_16 = {every: answer.points[3] for every, answer in answers.items()}
    assert at_16[1].bottleneck == "server 1 uplink"
    assert at_16[1].mean_staleness == pytest.approx(15, abs=0.5)
    assert at_16[4].mean_staleness == pytest.approx(39, abs=0.5)


def test_diloco() -> None:
    """Fragments that compute does not wait for hide all of the traffic but the last one's."""
    rounds = example("DiLoCo with fragments")["rounds_s"]
    assert rounds == {
        (1, 0): pytest.approx(57.2, abs=0.1),
        (4, 0): pytest.approx(55.4, abs=0.1),
        (4, 6): pytest.approx(38.8, abs=0.1),
    }


def test_federated_rounds() -> None:
    """A smaller quorum makes more rounds, and drops more work."""
    rounds = example("Federated rounds with a quorum")["rounds"]
    assert {quorum: round(per_hour, 1) for quorum, (per_hour, _) in rounds.items()} == {
        20: 5.6,
        16: 9.0,
        12: 13.4,
    }
    dropped = [float(share) for _, share in rounds.values()]
    assert dropped == pytest.approx([0, 0.16, 0.30], abs=0.01)
