"""`zbsolve draw`: timetables as text or pictures."""

from __future__ import annotations

import click

from zbsolve.cli import _inputs
from zbsolve.cli._output import FILE, STDOUT, Output, colour_wanted, columns, output_option, talk_options
from zbsolve.cli._text import inert

__all__ = ["draw"]


@click.command()
@click.argument("timetables", nargs=-1, required=True, metavar="T.json [MORE.json ...]", type=FILE)
@output_option("Write a picture there instead: x.svg or x.png; - is SVG on stdout.")
@click.option("--width", type=click.IntRange(20, 10_000), help="Columns of the text; default those of the terminal.")
@click.option("--memory/--no-memory", default=True, show_default=True, help="Memory under each timetable of a picture.")
@talk_options
def draw(*, timetables: tuple[str, ...], output: str | None, width: int | None, memory: bool, out: Output) -> None:
    """Draw timetables below each other on one time axis.

    They are judged first: exit code 1, and nothing is drawn, where one breaks a rule.
    """
    out = out.for_file(output, *timetables)
    names = [inert(title) for title in _inputs.titles(timetables)]
    shown = [(name, _inputs.read_sound(path)) for name, path in zip(names, timetables, strict=True)]
    if output is None:
        from zbsolve.draw.terminal import gantt_stack

        out.text(gantt_stack(shown, width=width or columns(), colour=not out.as_json and colour_wanted()))
        return
    from zbsolve.draw.figure import draw_timetables, render

    if output == STDOUT:
        out.write(output, render(shown, "svg", memory=memory))
        return
    written = draw_timetables(shown, output, memory=memory)
    out.say(f"wrote {written}")
    if out.as_json:
        out.data({"files": [str(written)]})
