"""`zbsolve explain`: why a timetable takes as long as it does."""

from __future__ import annotations

import click

from zbsolve.cli import _inputs
from zbsolve.cli._explained import explanation_fields, explanation_tables
from zbsolve.cli._figures import MOST_RANKS_LISTED
from zbsolve.cli._output import FILE, Output, talk_options
from zbsolve.cli._problem import seconds_option

__all__ = ["explain"]


@click.command()
@click.argument("timetable", metavar="T.json", type=FILE)
@click.option(
    "--bubbles",
    metavar="N",
    type=click.IntRange(0, 100_000),
    default=8,
    show_default=True,
    help="How many of the largest bubbles to tell.",
)
@click.option(
    "--what-if/--no-what-if",
    default=True,
    show_default=True,
    help="Solve again with more memory, faster links, a lighter stage.",
)
@seconds_option("--time-limit", default=10.0, what="For each of these.")
@click.option("--work-limit", type=click.IntRange(min=1), metavar="STEPS", help="For each of these, in search steps.")
@click.option("--seed", metavar="N", type=click.IntRange(0, 2**31 - 1), default=0, help="Of random choices.")
@click.option("--workers", metavar="N", type=click.IntRange(1, 1024), help="Parallel workers; default what there is.")
@talk_options
def explain(
    *,
    timetable: str,
    bubbles: int,
    what_if: bool,
    time_limit: float,
    work_limit: int | None,
    seed: int,
    workers: int | None,
    out: Output,
) -> None:
    """Tell why T.json takes as long as it does.

    Idle time by cause, warm-up, steady state and cool-down of each rank, the critical path, the
    largest bubbles, the bound that holds it back, and, by solving again, what one more microbatch of
    memory, faster links or a lighter stage would gain; Ctrl-C ends the search at hand, and the next
    begins. The timetable is judged first: exit code 1 where it breaks a rule.
    """
    from zbsolve.analysis.explain import explain as explained
    from zbsolve.analysis.whatif import Effort

    given, bound = _inputs.read_proven(timetable)
    effort = Effort(time_limit_s=time_limit, work_limit=work_limit, seed=seed, workers=workers) if what_if else None
    begun: set[str] = set()

    def tell(change: str) -> None:
        if change not in begun:
            begun.add(change)
            out.say(f"solving: {change}")

    told = explained(
        given, recorded=bound, most_bubbles=bubbles, what_if=effort, on_progress=lambda change, _: tell(change)
    )
    if out.as_json:
        out.data(explanation_fields(told))
    else:
        out.show(*explanation_tables(told, most_ranks=MOST_RANKS_LISTED))
