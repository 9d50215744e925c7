"""`zbsolve demo`: the whole way on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from zbsolve.cli._figures import solution_fields, table
from zbsolve.cli._output import Output, talk_options
from zbsolve.units import format_bytes, format_ns

if TYPE_CHECKING:
    from zbsolve.demo import DemoResult

__all__ = ["demo"]

COLUMNS = (
    "predicted_ns",
    "measured_ns",
    "torch_measured_ns",
    "bubble",
    "peak_bytes",
    "gradient_error",
    "torch_gradient_error",
)


@click.command()
@click.option(
    "-o",
    "--output",
    metavar="DIRECTORY",
    type=click.Path(path_type=str),
    default="zbsolve-demo",
    show_default=True,
    help="Where the files go.",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Of weights and search.")
@click.option("--quick", is_flag=True, help="A tiny model: shows that all works, measures little.")
@talk_options
def demo(*, output: str, seed: int, quick: bool, out: Output) -> None:
    """Measure a small transformer, solve, check, draw, emit and run it on four processes, on torch's runtime too.

    Takes about a minute and needs the extra torch; the picture needs the extra plot.
    """
    from zbsolve.demo import run_demo

    result = run_demo(output, seed=seed, quick=quick, say=out.say if out.as_json or out.quiet else out.tell)
    if out.as_json:
        out.data(
            {
                "rows": [
                    {"schedule": row.schedule, **{column: getattr(row, column) for column in COLUMNS}}
                    for row in result.rows
                ],
                "solution": solution_fields(result.solution),
                "files": [str(path) for path in result.files],
                "cores": result.cores,
            }
        )
    elif out.quiet:
        _show(result, out)


def _show(result: DemoResult, out: Output) -> None:
    made = table("schedule", "predicted", "measured", "torch's", "bubble", "peak memory", "gradient error", "torch's")
    for row in result.rows:
        times = (format_ns(ns) for ns in (row.predicted_ns, row.measured_ns, row.torch_measured_ns))
        errors = (f"{error:.1e}" for error in (row.gradient_error, row.torch_gradient_error))
        made.add_row(row.schedule, *times, f"{row.bubble:.4f}", format_bytes(row.peak_bytes), *errors)
    out.show(made, *(str(path) for path in result.files))
