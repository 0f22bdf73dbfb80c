"""The command line. Each command is a thin layer over one function of the package.

With ``--json``, stdout holds exactly one JSON document, and messages go to stderr. Exit codes: 0 success, 1
an input is invalid, 2 wrong usage, 3 the service or the environment failed.
"""

from collections.abc import Iterator
from pkgutil import resolve_name
from typing import Annotated, Any

import typer

from pace.cli.check_order import check_order
from pace.cli.headroom import headroom
from pace.cli.imports import app as import_app
from pace.cli.imports import fit
from pace.cli.keys import app as keys_app
from pace.cli.models import model
from pace.cli.optimize import check, optimize
from pace.cli.service import serve, submit
from pace.cli.simulate import simulate
from pace.cli.what_if import what_if
from pace.errors import PaceError
from pace.packs import EXTRAS, packs
from pace.terminal.command_line import CommandGroup, CommandLine
from pace.terminal.kind_options import KindCommand
from pace.terminal.reporting import reported
from pace.version import __version__

HELP = (
    "Schedule the gradient communication of distributed training so that it overlaps with compute.\n\n"
    "First run pace headroom on PyTorch profiler traces of your job: it shows what the job could gain. Then "
    "make a profile of them (pace import) and compute its schedule (pace optimize). To try without traces, "
    "make a profile of a known model (pace model).\n\n"
    "Exit codes: 0 success, 1 an input is invalid, 2 wrong usage, 3 the service or the environment failed."
)
# Of which an unknown option is one.
_UsageError: Any = typer.BadParameter.__mro__[1]
PROFILES, PLANS, SERVICES = "Profiles and costs", "Plan and explore", "Services"


def _plain(message: str) -> str:
    """Return what is wrong with an option without the validator's own words."""
    return (
        message.removeprefix("Value error, ")
        .replace(
            "Input should be a valid integer, unable to parse string as an integer", "expected a whole number"
        )
        .replace("Input should be a valid number, unable to parse string as a number", "expected a number")
    )


def _having(option: str, group: Any, path: str = "pace") -> Iterator[str]:
    """Yield the full names of the commands that have an option."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _having(option, command, f"{path} {name}")
        elif any(option in each.opts for each in command.params):
            yield f"{path} {name}"


class Commands(CommandGroup):
    """All commands. Errors in options are in plain words, and name the command that has an option."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name; say how to install the pack that it is in."""
        name = args[0]
        if name in EXTRAS and self.get_command(ctx, name) is None:
            with reported():
                extra = f'"pace-scheduler[{EXTRAS[name]}]"'
                raise PaceError(f"pace {name} is in a pack that is not installed: pip install {extra}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the arguments name."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _plain(error.message)
            raise
        except _UsageError as error:
            option, path = getattr(error, "option_name", None), getattr(error.ctx, "command_path", "")
            if option is not None and hasattr(error, "possibilities"):
                having = list(_having(option, self))
                alike = [name for name in having if name.split()[-1] == path.split()[-1]]
                found = alike or (having if len(having) == 1 else [])
                if found:
                    error.message += f"; `{found[0]}` has it"
                    error.possibilities = None
            raise


app = CommandLine(
    name="pace",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=HELP,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pace {__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def main(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Put the options of ``pace`` itself before those of the commands."""


app.add_typer(import_app, name="import", rich_help_panel=PROFILES)
app.command(
    rich_help_panel=PROFILES,
    epilog="Example: pace model resnet50 --device-tflops 15 --batch 64 --workers 8 -o profile.json",
)(model)
app.command(
    rich_help_panel=PROFILES, epilog="Example: pace fit all_reduce_perf.log --workers 8 -o cost.json"
)(fit)
app.command(
    rich_help_panel=PLANS, epilog="Example: pace headroom rank0.json.gz rank1.json.gz --html headroom.html"
)(headroom)
app.command(
    cls=KindCommand,
    rich_help_panel=PLANS,
    epilog="Example: pace optimize profile.json -o schedule.json --timeline window.json",
)(optimize)
app.command(rich_help_panel=PLANS, epilog="Example: pace check profile.json schedule.json")(check)
app.command(
    "check-order",
    rich_help_panel=PLANS,
    epilog="Example: pace check-order dump_rank_0 dump_rank_1",
)(check_order)
app.command(
    cls=KindCommand,
    rich_help_panel=PLANS,
    epilog="Example: pace simulate profile.json --policy ddp --policy pace",
)(simulate)
app.command(
    "what-if",
    cls=KindCommand,
    rich_help_panel=PLANS,
    epilog="Example: pace what-if profile.json --bandwidth-gbps 1,5,10 --workers 8,16 --html grid.html",
)(what_if)
app.command(rich_help_panel=SERVICES, epilog="Example: pace serve --port 8080")(serve)
app.command(
    rich_help_panel=SERVICES, epilog="Example: pace submit profile.json --service http://127.0.0.1:8080"
)(submit)
app.add_typer(keys_app, name="keys", rich_help_panel=SERVICES)
for pack in packs():
    for command, application in pack.commands.items():
        added = resolve_name(application)
        # What has no name adds its commands to those that are there.
        if command in ("", "import"):
            (import_app if command else app).add_typer(added)
        else:
            app.add_typer(added, name=command)
