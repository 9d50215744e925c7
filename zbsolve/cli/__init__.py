"""The command `zbsolve`: one module a verb, no logic.

A verb's module is imported when it is called, and imports what it needs when it runs, so asking for
help or for the version loads none of the heavy libraries.
"""

from __future__ import annotations

import click

from zbsolve.cli._about import SHELLS, tell_completion, tell_versions
from zbsolve.cli._group import VerbGroup

__all__ = ["main"]

VERBS = {
    "demo": "The whole way on this machine with a small transformer; about a minute.",
    "solve": "The best timetable for a profile, with a proven bound and gap.",
    "baseline": "A published schedule on your costs; --list names them.",
    "compare": "Published schedules and the solved one, or timetables, side by side.",
    "sweep": "The best value over memory limits, microbatches and placements.",
    "check": "Judge a timetable, by its own problem or by another memory limit.",
    "simulate": "Time the order of a timetable again, also under another profile.",
    "explain": "Why a timetable takes as long as it does, and what would help.",
    "draw": "Timetables as text, SVG or PNG.",
    "report": "Timetables as one page for a browser, to zoom into and to print.",
    "emit": "A timetable in the format of another tool.",
    "read": "Another tool's schedule as a timetable.",
    "profile": "Measure a profile, import one or look at one.",
    "schema": "The JSON schema of a file kind.",
}
"""Every verb with the line that the list of verbs shows; module and function bear the verb's name."""


EXIT_CODES = """\b
Exit codes: 0 fine, 1 violations or a failed run, 2 usage or a bad file,
3 infeasible, 4 nothing found in time, 5 --require-optimal not met,
6 an optional dependency is missing.
"""


@click.group(
    cls=VerbGroup,
    package=__name__,
    verbs=VERBS,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=tell_versions, help="Show versions and exit."
)
@click.option(
    "--completion",
    type=click.Choice(SHELLS),
    is_eager=True,
    expose_value=False,
    callback=tell_completion,
    help="Print what makes a shell complete commands and exit.",
)
def main() -> None:
    """Find the best timetable for pipeline-parallel training, prove it, check it, hand it on.

    Results go to stdout, talk and progress to stderr. A file may be `-`: standard input or output.
    """
