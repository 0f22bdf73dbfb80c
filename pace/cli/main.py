"""The command line put together. Each command is a thin layer over one function of the package.

With ``--json`` stdout holds exactly one JSON document; people's text goes to stderr. Exit codes: 0 done,
1 the thing asked about is wrong, 2 wrong usage, 3 service or environment failed.
"""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pace.cli.headroom import headroom
from pace.cli.imports import app as import_app
from pace.cli.imports import fit
from pace.cli.keys import app as keys_app
from pace.cli.models import model
from pace.cli.optimize import check, optimize
from pace.cli.predict import fit_overhead, predict
from pace.cli.servers.processes import app as servers_app
from pace.cli.service import serve, submit
from pace.cli.simulate import simulate
from pace.cli.what_if import what_if
from pace.fabric.commands.app import app as fabric_app
from pace.version import __version__


class Commands(TyperGroup):
    """All commands: what is wrong with an option is said without the validator's own words."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that is named."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    name="pace",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Schedules gradient all-reduces so that communication hides behind compute.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pace {__version__}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Schedules gradient all-reduces so that communication hides behind compute."""


app.add_typer(import_app, name="import")
app.add_typer(fabric_app, name="fabric")
app.add_typer(keys_app, name="keys")
app.add_typer(servers_app, name="servers")
app.command("fit-overhead")(fit_overhead)
for command in (fit, headroom, what_if, predict, optimize, check, simulate, model, submit, serve):
    app.command()(command)
