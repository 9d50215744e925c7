"""`zbsolve profile import`: a profile from what another tool has measured."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click

from zbsolve.cli import _inputs
from zbsolve.cli._output import Output, Verb, output_option, talk_options
from zbsolve.errors import UnitError
from zbsolve.units import parse_bytes, parse_ns

if TYPE_CHECKING:
    from zbsolve.profile import Profile

__all__ = ["import_options", "imported"]

SIZES = {
    "activation": "held from the start of F",
    "backward-weight": "left by B until the end of W",
    "workspace": "extra while an operation runs",
    "static": "parameters, gradients, optimizer",
    "output": "sent to the next stage",
}

TOOLS = ("torch-profiler", "zero-bubble", "nsight", "csv")


def import_options(verb: Verb) -> Verb:
    """Give a verb the files and options of an import; it receives them as `asked`, a mapping."""

    @click.argument("files", nargs=-1, required=True, metavar="FILE [MORE ...]")
    @click.option("--from", "tool", type=click.Choice(TOOLS), help="Who has measured; default told by content.")
    @click.option("--like", metavar="PROFILE", help="Take bytes and links from this profile.")
    @click.option(
        "--skip-steps",
        type=click.IntRange(0, 10**6),
        help="torch-profiler: first steps that do not count; default 1, if there are more.",
    )
    @click.option("--ranks", type=click.IntRange(1, 4096), help="zero-bubble: pipeline ranks.")
    @click.option(
        "--placement",
        type=click.Choice(["v", "looped"]),
        help="zero-bubble: where several chunks lie; default v.",
    )
    @click.option("--latency", metavar="TIME", help="Of a transfer, such as 600us.")
    @click.option("--bandwidth", metavar="SIZE", help="Of a link a second, such as 25GB.")
    @click.option(
        "--weight-share",
        type=click.FloatRange(0, 1),
        default=0.5,
        show_default=True,
        help="W's part of a backward that was not split.",
    )
    @click.option("--name", default="", help="Name of the profile.")
    @output_option("Write the profile there.")
    @talk_options
    @functools.wraps(verb)
    def wrapped(*args: Any, output: str | None, out: Output, **asked: Any) -> Any:
        return verb(*args, asked=asked, output=output, out=out)

    for what, meaning in SIZES.items():
        option = click.option(f"--{what}-bytes", metavar="SIZE[,SIZE...]", help=f"{meaning}; one, or one a stage.")
        wrapped = option(wrapped)
    return wrapped


def imported(asked: dict[str, Any], out: Output) -> Profile:
    """Read the files; what had to be assumed is said.

    Raises
    ------
    UsageError
        If an option cannot be read.
    """
    from zbsolve.interop.measurements import Reading, import_profile
    from zbsolve.interop.samples import Given

    files = asked["files"]
    _inputs.titles((*files, *([asked["like"]] if asked["like"] else [])))
    sizes = {f"{what.replace('-', '_')}_bytes": asked[f"{what.replace('-', '_')}_bytes"] for what in SIZES}
    given = Given(
        bytes_of_stage={field: _sizes(field, text) for field, text in sizes.items() if text is not None},
        like=None if asked["like"] is None else _inputs.read_profile(asked["like"]),
        latency_ns=_option("--latency", asked["latency"], parse_ns),
        bytes_per_second=_option("--bandwidth", asked["bandwidth"], parse_bytes),
        weight_share=Fraction(asked["weight_share"]).limit_denominator(10**6),
        name=asked["name"],
    )
    reading = Reading(skip_steps=asked["skip_steps"], ranks=asked["ranks"], placement=asked["placement"])
    made, notes = import_profile([_inputs.content(path) for path in files], given, tool=asked["tool"], reading=reading)
    for note in notes:
        out.say(note)
    return made


def _sizes(field: str, text: str) -> tuple[int, ...]:
    option = "--" + field.replace("_", "-")
    parts = text.split(",")
    return tuple(value for part in parts if (value := _option(option, part, parse_bytes)) is not None)


def _option(option: str, text: str | None, read: Any) -> int | None:
    if text is None:
        return None
    try:
        return int(read(text.strip(), option))
    except UnitError as error:
        raise click.UsageError(f"{error}.") from None
