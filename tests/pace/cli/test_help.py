"""The help of every command and option: a phrase that ends, a default where there is one, an example."""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from pace.cli import app
from pace.documents.options import ExchangeOptions, Options, SimulationOptions
from pace.formats.fit import FORMATS
from pace.kinds.registry import kinds
from pace.models import NAMES
from tests.sharded_graphs import tiny_graph
from tests.strategies import affine, layered

_ENDS = re.compile(r"[\w)'`]\.$")


def commands(command: Any, name: str = "pace") -> Iterator[tuple[str, Any]]:
    """Yield every command and group with its full name."""
    yield name, command
    for child, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{name} {child}")


COMMANDS = dict(commands(get_command(app)))
PARAMETERS = {
    f"{name} {parameter.opts[0]}": parameter
    for name, command in COMMANDS.items()
    for parameter in command.params
    if parameter.name != "help"
}


def is_phrase(text: str) -> bool:
    """Whether a text begins with a capital letter or a name, ends with a full stop and has several words."""
    return bool(_ENDS.search(text)) and (text[0].isupper() or text[0] in "-`") and len(text.split()) > 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name: str) -> None:
    """In whole sentences, of which the first fits into a list of commands."""
    text = COMMANDS[name].help
    paragraphs = re.split(r"\n\s*\n", text.strip())
    assert all(is_phrase(" ".join(paragraph.split())) for paragraph in paragraphs), text
    assert len(" ".join(paragraphs[0].split())) < 110


@pytest.mark.parametrize("name", COMMANDS)
def test_no_help_breaks_a_sentence(name: str) -> None:
    """On a wide terminal each paragraph is one line, also in the lists of commands."""
    asked = [*name.split()[1:], "--help"]
    shown = CliRunner().invoke(app, asked, env={"COLUMNS": "1500", "NO_COLOR": "1"}).stdout
    text = [line.strip() for line in shown.partition("╭")[0].splitlines()[2:]]
    assert [line for line in text if line and not is_phrase(line)] == []
    for child in getattr(COMMANDS[name], "commands", {}):
        row = re.search(rf"^│ {re.escape(child)} +(\S.*?) *│$", shown, flags=re.MULTILINE)
        assert row is not None, shown
        assert is_phrase(row[1])


@pytest.mark.parametrize("name", [name for name, each in COMMANDS.items() if not hasattr(each, "commands")])
def test_every_command_has_an_example_that_can_be_typed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this command; its options exist, and nothing that is required is left out."""
    monkeypatch.chdir(tmp_path)
    path = name.split()
    examples = [kind.examples[path[-1]] for kind in kinds().values() if path[-1] in kind.examples]
    for example in (COMMANDS[name].epilog.removeprefix("Example: "), *(examples if len(path) == 2 else ())):
        words = example.split()
        assert words[: len(path)] == path
        for word in words:
            if re.fullmatch(r"[\w.]+", word):
                Path(word).touch()  # files that the example reads
        assert COMMANDS[name].make_context(name, words[len(path) :]).args == []


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_option_has_a_phrase_and_its_default(name: str) -> None:
    """What it is, with its unit, and what holds without it."""
    parameter = PARAMETERS[name]
    assert is_phrase(parameter.help or ""), f"{name}: {parameter.help!r}"
    if parameter.param_type_name == "argument" or parameter.required or parameter.is_flag:
        return
    assert parameter.show_default, f"{name} shows no default"
    if parameter.default in (None, [], ()):
        assert isinstance(parameter.show_default, str), f"{name}: what holds without it?"


@pytest.mark.parametrize(("unit", "words"), [("_s", "econd"), ("_bytes", "bytes"), ("_gbps", "Gbit/s")])
def test_options_with_a_unit_in_their_name_say_it(unit: str, words: str) -> None:
    """Nobody has to guess what a suffix means."""
    found = {
        name: each
        for name, each in PARAMETERS.items()
        if each.name.endswith(unit) and "_per_s" not in each.name
    }
    assert found
    assert [name for name, each in found.items() if words not in each.help] == []


def test_one_option_means_one_thing() -> None:
    """An address of the service is --service everywhere, and no option exists under two spellings."""
    options = {option for each in PARAMETERS.values() for option in each.opts if option.startswith("--")}
    assert not options & {"--url", "--async", "--consistency", "--num-servers", "--out"}
    helps: dict[str, set[str]] = {}
    for name, each in PARAMETERS.items():
        helps.setdefault(name.split()[-1], set()).add(each.help)
    for option in ("--json", "--csv", "--html", "--plot", "--api-key"):
        assert len(helps[option]) == 1, option


def test_names_that_a_help_lists_are_those_that_exist() -> None:
    """Formats of logs and architectures."""
    assert all(name in PARAMETERS["pace fit --format"].help for name in FORMATS)
    assert all(name in PARAMETERS["pace model name"].help for name in NAMES)


@pytest.mark.parametrize("model", [Options, SimulationOptions])
def test_choices_are_named_in_the_text(model: type[ExchangeOptions]) -> None:
    """The help shows `<name>`, so its text has every name that can be given."""
    for name, field in model.model_fields.items():
        for part in (field.annotation, *get_args(field.annotation)):
            if get_origin(part) is Literal:
                words = set(re.findall(r"\w+", f"{field.description} {field.default}"))
                assert {str(choice) for choice in get_args(part)} <= words, name


def shown_options(*arguments: object) -> set[str]:
    """Return the options that the help of a command line shows."""
    done = CliRunner().invoke(app, [*map(str, arguments), "--help"], env={"COLUMNS": "300", "NO_COLOR": "1"})
    assert done.exit_code == 0
    return set(re.findall(r"^│ +\*? *(--[\w-]+)", done.stdout, flags=re.MULTILINE))


def test_help_shows_the_options_of_the_inputs_kind(tmp_path: Path) -> None:
    """Of all-reduces, of a profile's own kind, or of the exchange that is named; at most 14 of them."""
    clipped = tmp_path / "clipped.json"
    clipped.write_bytes(layered([4, 8], allreduce=affine(0.0, 1e-9)).replace(update="global-norm").to_json())
    graph = tmp_path / "graph.json"
    graph.write_bytes(tiny_graph(1).to_json())
    whole = shown_options("optimize")
    assert len(whole) <= 14
    assert {"--oracle", "--for", "--risk"} <= whole
    assert not whole & {"--memory-gb", "--servers", "--search-r", "--lp-solver"}
    assert {"--search-r"} == shown_options("optimize", "--fusion", "paper") - whole
    assert {"--lp-solver"} == shown_options("optimize", "--oracle", "lp") - whole
    assert {"--write-lp"} == shown_options("optimize", "--slot-s", "1") - whole
    sharded = shown_options("optimize", clipped)
    assert sharded == shown_options("optimize", "--exchange", "sharded") < whole
    assert "--memory-gb" in shown_options("optimize", graph)
    assert "--fusion" not in shown_options("optimize", graph)
    assert "--ranks" in shown_options("what-if", graph)
    assert "--ranks" not in shown_options("what-if")
    assert "--tune" not in shown_options("simulate", graph)


@pytest.mark.parametrize(
    ("arguments", "example", "policies"),
    [
        (("--policy", "ddp"), "--policy ddp --policy pace", "fifo, horovod, ddp"),
        (("--exchange", "sharded"), "--exchange sharded --policy zero-1", "dear, zero-1"),
        (("--servers", "2"), "--servers 2 --policy byteps", "fifo, tio, tao, p3, bytescheduler, byteps"),
        (("--exchange", "graph"), "simulate graph.json --policy fsdp2", "pace, as-traced, fsdp2"),
    ],
)
def test_help_names_the_policies_of_the_kind(arguments: tuple[str, ...], example: str, policies: str) -> None:
    """And its example is for this kind."""
    asked = ["simulate", *arguments, "--help"]
    shown = CliRunner().invoke(app, asked, env={"COLUMNS": "300", "NO_COLOR": "1"}).stdout
    assert re.search(rf"Example: .*{example}", shown)
    assert f"Policies: {policies}" in shown


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("what-if", "--receivers", "4"), "`pace sync what-if` has it"),
        (("what-if", "--fleet", "4"), "`pace predict` has it"),
        (("what-if", "--wrkers", "4"), "Possible options: --ranks, "),
    ],
)
def test_an_option_of_another_command_is_told_with_this_command(
    arguments: tuple[str, ...], told: str
) -> None:
    """It may be in a pack, whose command has the same name."""
    done = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert done.exit_code == 2
    assert told in done.stderr


_VALUES = ("-1", "nan", "99999999999999999999", "lp", "p95")
_WITH: dict[str, tuple[tuple[str, ...], ...]] = {
    "optimize": ((), ("--slot-s", "1"), ("--for", "ddp"), ("--servers", "1")),
    "simulate": (("--policy", "fifo"), ("--policy", "fifo", "--servers", "1")),
    "what-if": (("--policy", "fifo"), ("--workers-per-node", "2", "--intra-gbps", "9")),
}


@pytest.mark.parametrize("command", _WITH)
def test_errors_call_options_as_they_are_typed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each option with values that are wrong, alone and beside others."""
    monkeypatch.chdir(tmp_path)
    profile = tmp_path / "plain"
    profile.write_bytes(layered([4, 8], allreduce=affine(0.0, 1e-9)).to_json())
    options = (each for each in COMMANDS[f"pace {command}"].params if each.opts[0].startswith("--"))
    typed = {
        each.name: each.opts[0]
        for each in options
        if not each.is_flag and each.name not in ("knob", "processes")
    }
    names = re.compile(rf"pace: ({'|'.join(typed)})\b|(?<![\w-])\w+_(s|bytes|gbps|node)\b")
    refused = 0
    for option in typed.values():
        for value, beside in product(_VALUES, _WITH[command]):
            done = CliRunner().invoke(app, [command, str(profile), *beside, option, value])
            assert done.exception is None or isinstance(done.exception, SystemExit), (option, value, beside)
            refused += done.exit_code != 0
            assert not names.search(done.stderr), done.stderr
    assert refused > 50


def test_help_shows_what_the_command_would_take(tmp_path: Path) -> None:
    """The kind that help shows is the one by which the command refuses, whatever chooses it."""
    clipped = tmp_path / "clipped.json"
    plain = layered([4, 8], allreduce=affine(0.0, 1e-9))
    clipped.write_bytes(plain.replace(update="global-norm").to_json())
    graph, broken = tmp_path / "graph.json", tmp_path / "broken.json"
    graph.write_bytes(tiny_graph(1).to_json())
    broken.write_text(graph.read_text().replace('"wires"', '"wirez"'))
    assert "--for" in shown_options("optimize", clipped, "--for", "ddp")
    assert "--memory-gb" in shown_options("optimize", graph, "--exchange", "sharded")
    assert "--memory-gb" in shown_options("optimize", broken)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("optimize", "graph", "--partition-bytes", "9"), "--partition-bytes is only for exchange servers"),
        (("optimize", "plain", "--lp-solver", "pulp"), "--lp-solver needs --oracle lp: add it"),
        (("simulate", "plain", "--trials", "3"), "--trials needs --tune: add it"),
        (("optimize", "plain", "--memory-gb", "2"), "--memory-gb is only for exchange graph"),
    ],
)
def test_what_another_kind_has_is_refused_with_what_to_do(
    arguments: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    """By the names of options, and with the way to the kind that has them."""
    (tmp_path / "plain").write_bytes(layered([4, 8], allreduce=affine(0.0, 1e-9)).to_json())
    (tmp_path / "graph").write_bytes(tiny_graph(1).to_json())
    command, name, *options = arguments
    done = CliRunner().invoke(app, [command, str(tmp_path / name), *options])
    assert done.exit_code == 2
    assert told in done.stderr


def test_every_option_belongs_to_an_exchange() -> None:
    """An option of no exchange could never be given."""
    for model in (Options, SimulationOptions):
        for name, each in model.described().items():
            assert each.exchanges or name == "exchange"
        assert model.described().keys() == model.model_fields.keys()
