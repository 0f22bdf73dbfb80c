"""Commands whose options depend on the kind of their input, and options that are the fields of a model."""

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperOption

from pace.documents.graph.collective_graph import CollectiveGraph, is_graph
from pace.documents.options import DescribedOptions, For, Options
from pace.documents.profile import Profile
from pace.documents.schedule import Exchange
from pace.errors import InvalidOptions
from pace.kinds import load_problem
from pace.kinds.kind import AnyProblem, Kind
from pace.kinds.registry import kind_of, kinds, kinds_with
from pace.terminal.command_line import Command
from pace.terminal.number_lists import read_numbers, read_whole_numbers

Function = TypeVar("Function", bound=Callable[..., None])

_ARGUMENTS, _SHOWN = "pace.arguments", "pace.shown"
_DEFAULT_KIND = "allreduce"
# A command has this attribute: which exchanges have a parameter, by the parameter's name.
_HAS = "pace_exchanges"
# And these: the options of kinds that are not a model's, by kind; and whether a profile's own kind counts.
_FLAGS, _AS_MEASURED = "pace_flags", "pace_as_measured"
# Help reads no larger file to find its kind.
_MOST_READ_BYTES = 32 << 20


def with_options_of(
    model: type[DescribedOptions] | Mapping[Exchange, type[DescribedOptions]],
    flags: Mapping[str, str] | None = None,
    apart: Collection[str] = (),
    own: Mapping[str, For] | None = None,
    *,
    as_measured: bool = True,
) -> Callable[[Function], Function]:
    """Return a decorator that gives a command the fields of a model and the flags of kinds as options.

    They follow the command's arguments.

    Parameters
    ----------
    model
        The model, or the models of kinds that differ in theirs.
    flags
        Names of options that are not those of their fields.
    apart
        Fields that the command reads in its own way.
    own
        Which exchanges have an option of the command's own; all, if it is not here.
    as_measured
        If true, a profile's own fields decide its kind. If false, a profile is one of all-reduces, unless an
        option is given that only one other kind has.
    """
    described, fields = _described(model)
    names = [name for name in described if name not in apart]

    def decorate(command: Function) -> Function:
        signature = inspect.signature(command)
        asked = [_parameter(fields, described[name], name, (flags or {}).get(name)) for name in names]
        flags_of = {kind.name: kind.flags(command.__name__) for kind in kinds().values()}
        asked += [flag for some in flags_of.values() for flag in some]
        kept = [
            each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        first = next(number for number, each in enumerate(kept) if each.default is not each.empty)
        kept[first:0] = asked
        command.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # functions take any attribute
        command.__annotations__ |= {each.name: each.annotation for each in asked}
        has = {name: described[name] for name in names if described[name].exchanges}
        of_flags = {flag.name: For((name,)) for name, some in flags_of.items() for flag in some}
        setattr(command, _HAS, has | dict(own or {}) | of_flags)
        setattr(command, _FLAGS, flags_of)
        setattr(command, _AS_MEASURED, as_measured)
        return command

    return decorate


def _described(
    model: type[DescribedOptions] | Mapping[Exchange, type[DescribedOptions]],
) -> tuple[dict[str, For], dict[str, FieldInfo]]:
    """Return the options that a model's fields are, or those of kinds' models, and these fields."""
    if not isinstance(model, Mapping):
        return model.described(), model.model_fields
    described: dict[str, For] = {}
    fields: dict[str, FieldInfo] = {}
    defaults: dict[str, dict[str, str]] = {}
    for exchange, one in model.items():
        for name, told in one.described().items():
            fields.setdefault(name, one.model_fields[name])
            first = described.get(name, told)
            described[name] = replace(first, exchanges=(*first.exchanges, exchange))
            if (default := _listed(one.model_fields[name].default)) is not None:
                defaults.setdefault(name, {}).setdefault(default, exchange)
    for name, values in defaults.items():
        if len(values) > 1:
            unset = "; ".join(f"for exchange {exchange}: {value}" for value, exchange in values.items())
            described[name] = replace(described[name], unset=unset)
    return described, fields


def _listed(default: Any) -> str | None:
    """Return values as a command line has them; None without one."""
    if not isinstance(default, tuple):
        return None
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in default) or None


def _parameter(
    fields: Mapping[str, FieldInfo], described: For, name: str, flag: str | None
) -> inspect.Parameter:
    field = fields[name]
    text = re.sub(
        r"`(\w+)`",
        lambda word: _flag(word[1]) if word[1] in fields else f"`{word[1]}`",
        " ".join((field.description or "").split()),
    )
    if described.needs is not None:
        other, value = described.needs
        text = f"With {_flag(other)} {value}: {text[0].lower()}{text[1:]}"
    annotation, default = _bare(field.annotation), field.default
    if get_origin(annotation) is tuple:
        several = "; repeat the option for several"
        annotation, default = list[str] | None, None
        if described.example is not None:
            several, annotation = f", for example {described.example}", str | None
        text = f"{text.removesuffix('.')}{several}."
    # The text names all choices: a column as wide as their list would leave little for it.
    chosen = any(get_origin(part) is Literal for part in (annotation, *get_args(annotation)))
    option = typer.Option(
        *([flag] if flag else []),
        help=text,
        show_default=described.unset or _listed(field.default) or True,
        metavar="<name>" if chosen else None,
        rich_help_panel=described.panel,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=default,
        annotation=Annotated[annotation, option],
    )


def _bare(annotation: Any) -> Any:
    """Return a type without what is required of its values: the model refuses these itself."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    parts = get_args(annotation)
    if type(None) in parts:
        (other,) = (part for part in parts if part is not type(None))
        return _bare(other) | None
    return annotation


def fields_of(model: type[DescribedOptions], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a model that a command line sets.

    Raises
    ------
    InvalidOptions
        If a list does not hold numbers where the field does.
    """
    readers = {int: read_whole_numbers, float: read_numbers}
    found = {}
    for name, described in model.described().items():
        value = asked[name]
        if value is None:
            continue
        if described.example is not None:
            item = _bare(get_args(model.model_fields[name].annotation)[0])
            value = readers.get(item, _read_words)(_flag(name), value)
        found[name] = tuple(value) if isinstance(value, list) else value
    return found


def _read_words(_option: str, text: str) -> tuple[str, ...]:
    return tuple(text.replace(" ", "").split(","))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class KindCommand(Command):
    """A command that shows the options of its input's kind, and of what is chosen by other options."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer's own context
        """Parse the command line, and keep it for the help."""
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]  # typer's own context
        """Return all parameters, or while help is written those that it shows."""
        parameters = super().get_params(ctx)
        shown = ctx.meta.get(_SHOWN)
        return parameters if shown is None else [each for each in parameters if shown(each)]

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]  # typer's own context
        """Write the help for the kind and the choices of the command line."""
        given = self._given(ctx)
        kind = self._kind_shown(given)
        has: Mapping[str, For] = getattr(self.callback, _HAS)

        def is_shown(parameter: Any) -> bool:
            each = has.get(parameter.name)
            if each is None:
                return True
            return kind in each.exchanges and each.is_chosen(given.get)

        ctx.meta[_SHOWN] = is_shown
        epilog = self.epilog
        example = kinds()[kind].examples.get(self.name or "")
        shown = epilog if example is None else f"Example: {example}"
        self.epilog = "\n\n".join([shown or "", *_further_help(ctx, kind, has, given)])
        try:
            super().format_help(ctx, formatter)
        finally:
            self.epilog = epilog
            del ctx.meta[_SHOWN]

    def _given(self, ctx: typer.Context) -> dict[str, Any]:
        try:
            return dict(self.make_parser(ctx).parse_args(list(ctx.meta.get(_ARGUMENTS, ())))[0])
        except typer.BadParameter:
            return {}

    def _kind_shown(self, given: Mapping[str, Any]) -> str:
        path = Path(given.get("profile") or "")
        problem: AnyProblem | None = None
        try:
            if path.is_file() and path.stat().st_size <= _MOST_READ_BYTES:
                problem = load_problem(path)
        except (ValueError, OSError):  # running the command says what is wrong with the file
            return "graph" if is_graph(path) else _DEFAULT_KIND
        try:
            return kind_for(self, problem, given)
        except InvalidOptions:  # of another problem
            return _DEFAULT_KIND if problem is None else kind_of(problem).name


def kind_for(command: Any, problem: AnyProblem | None, given: Mapping[str, Any]) -> str:
    """Return the kind for which a command line asks.

    Parameters
    ----------
    command
        A command with options by kind.
    problem
        What its input holds; None if it is not known.
    given
        Its options by name.

    Raises
    ------
    InvalidOptions
        If the exchange that is asked for is not possible for the problem.
    """
    exchange = given.get("exchange")
    if exchange is None and not isinstance(problem, CollectiveGraph):
        chosen = (
            name
            for name, flags in getattr(command.callback, _FLAGS).items()
            if any(given.get(flag.name) not in (None, flag.default) for flag in flags)
        )
        exchange = next(chosen, None)
    if problem is None:
        return str(exchange) if exchange in kinds() else _DEFAULT_KIND
    if exchange is None and not getattr(command.callback, _AS_MEASURED):
        own = {
            each.exchanges[0]
            for name, each in getattr(command.callback, _HAS).items()
            if len(each.exchanges) == 1 and given.get(name) not in (None, False, _default(command, name))
        }
        fitting = (kind.name for kind in kinds_with(problem) if kind.name in own)
        return next(fitting, _DEFAULT_KIND if isinstance(problem, Profile) else kind_of(problem).name)
    return kind_of(problem, Options(exchange=exchange, framework=given.get("framework"))).name


def _default(command: Any, name: str) -> Any:
    return next(each.default for each in command.params if each.name == name)


def fields_of_flags(command: Any, kind: Kind, problem: AnyProblem, asked: dict[str, Any]) -> dict[str, Any]:
    """Take the flags of all kinds from what a command was asked; return the fields that the kind's set."""
    flags_of = getattr(command.callback, _FLAGS)
    given = {flag.name: asked.pop(flag.name) for some in flags_of.values() for flag in some}
    return kind.read_flags(problem, given)


def _further_help(
    ctx: typer.Context, kind: str, has: Mapping[str, For], given: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the names of policies, and how to see the options that are not shown."""
    name = ctx.command_path
    takes_exchange = any(each.name == "exchange" for each in ctx.command.params)
    if takes_exchange:
        yield f"These options are for exchange {kind}. For another one, run: {name} --exchange NAME --help"
    else:
        ways = {"graph": f"{name} GRAPH_FILE --help", "allreduce": f"{name} --help"}
        told = "; ".join(f"For exchange {each}, run: {way}" for each, way in ways.items() if each != kind)
        yield f"These options are for exchange {kind}. {told}"
    if any("--policy" in each.opts for each in ctx.command.params):
        from pace.simulation.registry import policies_for

        among = given.get("exchange") or (None if kinds()[kind].shares_network else kinds()[kind].name)
        yield f"Policies: {', '.join(policies_for(among))}"
    hidden: dict[str, list[str]] = {}
    for option, each in has.items():
        if kind in each.exchanges and each.needs is not None and not each.is_chosen(given.get):
            hidden.setdefault(_needed(each.needs), []).append(_flag(option))
    if hidden:
        more = "; ".join(f"{', '.join(options)} (with {needed})" for needed, options in hidden.items())
        yield f"More options: {more}."


def _needed(needs: tuple[str, str | None]) -> str:
    return f"{_flag(needs[0])} {needs[1] or ''}".strip()


def refuse_others(ctx: typer.Context, kind: str) -> None:
    """Refuse options of the command line that have no meaning for a kind; raises InvalidOptions."""
    has: Mapping[str, For] = getattr(ctx.command.callback, _HAS)
    flags = {each.name: each.opts[0] for each in ctx.command.params if isinstance(each, TyperOption)}
    for name, flag in flags.items():
        if name not in has or not _is_given(ctx, name):
            continue
        each = has[name]
        if kind not in each.exchanges:
            fitting = " or ".join(each.exchanges)
            raise InvalidOptions(
                f"{flag} is only for exchange {fitting}, and this is exchange {kind}: leave {flag} out"
            )
        if each.needs is not None and not each.is_chosen(ctx.params.get):
            raise InvalidOptions(f"{flag} needs {_needed(each.needs)}: add it, or leave {flag} out")


def _is_given(ctx: typer.Context, name: str | None) -> bool:
    source = None if name is None else ctx.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")
