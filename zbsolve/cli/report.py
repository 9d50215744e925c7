"""`zbsolve report`: timetables as one page for a browser."""

from __future__ import annotations

import click

from zbsolve.cli import _inputs
from zbsolve.cli._output import FILE, STDOUT, Output, output_option, talk_options
from zbsolve.cli._text import inert

__all__ = ["report"]


@click.command()
@click.argument("timetables", nargs=-1, required=True, metavar="T.json [OTHER.json ...]", type=FILE)
@output_option("The page, such as report.html; - is stdout.")
@talk_options
def report(*, timetables: tuple[str, ...], output: str | None, out: Output) -> None:
    """Write one page that shows timetables below each other on one time axis, and why they take as long as they do.

    The page is one file, works offline and asks for nothing. It has the timelines to zoom into, every
    operation's times, slack and what it waited for, memory against the limit, idle time by cause, the
    critical path, and the bound with what proves it. The timetables are judged first: exit code 1, and
    nothing is written, where one breaks a rule.
    """
    from zbsolve.draw.report import Entry, render_report

    if output is None:
        raise click.UsageError("say where the page goes: -o report.html, or -o - for stdout.")
    out = out.for_file(output, *timetables)
    names = [inert(title) for title in _inputs.titles(timetables)]
    entries = [Entry(name, *_inputs.read_proven(path)) for name, path in zip(names, timetables, strict=True)]
    page = render_report(entries)
    out.write(output, page)
    if out.as_json and output != STDOUT:
        out.data({"files": [output], "bytes": len(page), "timetables": names})
