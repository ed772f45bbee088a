"""The command `netfold`. Each subcommand lives in a module that is loaded when it is called.

So `netfold switch` and `netfold --version` start without torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from netfold import __version__
from netfold.errors import NetfoldError

# name -> (module under netfold.cli, what it calls it there, the line `netfold --help` shows)
_COMMANDS: Final = {
    "switch": ("switch", "switch", "Run an aggregating switch."),
    "run": ("run", "run", "Run a training script on this machine."),
    "demo": ("demo", "demo", "Train a small GPT through a switch and with gloo, side by side."),
    "bench": ("bench", "app", "Measure netfold beside a baseline."),
}
# Some releases of typer depend on click, others carry a copy: theirs is what they raise.
_UsageError: Final[Any] = typer.BadParameter.__mro__[1]
# Options behind the script are the script's own.
_PASS_THROUGH: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}


class _Group(TyperGroup):
    """Knows the commands by name and loads the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (click's)
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 (click's)
        if cmd_name not in _COMMANDS:
            return None
        module, name, summary = _COMMANDS[cmd_name]
        target: Any = getattr(import_module(f"netfold.cli.{module}"), name)
        app = target
        if not isinstance(target, typer.Typer):
            app = typer.Typer(add_completion=False)
            settings = _PASS_THROUGH if cmd_name == "run" else {}
            app.command(name=cmd_name, help=summary, context_settings=settings)(target)
        command: Any = typer.main.get_command(app)
        command.name = cmd_name
        return command


app = typer.Typer(cls=_Group, no_args_is_help=True, add_completion=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"netfold {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """PyTorch's all-reduce computed inside the network."""


def main() -> None:
    """The entry point: a wrong flag or setting is one sentence and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except _UsageError as error:
        if error.format_message():  # there is none where the help was shown instead
            print(f"netfold: {error.format_message()}", file=sys.stderr)
        sys.exit(2)
    except NetfoldError as error:
        print(f"netfold: {error.message}", file=sys.stderr)
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        print("netfold: interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)
