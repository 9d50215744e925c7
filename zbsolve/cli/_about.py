"""What the command says of itself: versions, and completion for shells."""

from __future__ import annotations

import platform
from importlib import metadata

import click

__all__ = ["SHELLS", "tell_completion", "tell_versions"]

SHELLS = ("bash", "zsh", "fish")

LIBRARIES = ("ortools", "torch")
"""Whose version decides what is found and what runs; asked of the installed packages, nothing is imported."""


def tell_versions(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    """Print our version, and those of the solver, of torch and of Python."""
    if not wanted or ctx.resilient_parsing:
        return
    from zbsolve import __version__

    click.echo(f"zbsolve {__version__}")
    for name in LIBRARIES:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = "is not installed"
        click.echo(f"{name} {version}")
    click.echo(f"python {platform.python_version()}")
    ctx.exit()


def tell_completion(ctx: click.Context, option: click.Parameter, shell: str | None) -> None:
    """Print click's script for a shell; `eval` it, or keep it where the shell looks for such scripts."""
    if shell is None or ctx.resilient_parsing:
        return
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.command, {}, "zbsolve", "_ZBSOLVE_COMPLETE")
    click.echo(script.source_template % script.source_vars())
    ctx.exit()
