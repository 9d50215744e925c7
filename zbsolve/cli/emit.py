"""`zbsolve emit`: a timetable in the format of another tool."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from zbsolve.cli import _inputs
from zbsolve.cli._output import STDOUT, Output, output_option, talk_options

__all__ = ["emit"]

FORMATS = ("torch-csv",)


@click.command()
@click.argument("timetable", metavar="T.json")
@click.option("--to", "target", type=click.Choice(FORMATS), required=True, help="The format.")
@output_option("Write there; torch-csv puts a JSON file with the rest beside it.")
@talk_options
def emit(*, timetable: str, target: str, output: str | None, out: Output) -> None:
    """Hand T.json to another tool.

    torch-csv is what torch.distributed.pipelining (and TorchTitan) loads: one row a rank, compute
    operations only. The timetable is judged first: exit code 1, and nothing is written, where it
    breaks a rule.
    """
    from zbsolve.interop.torch import write_torch_csv

    path = None if output == STDOUT else output
    out = out.for_file(output, timetable, beside=".json")
    given = _inputs.read_sound(timetable)
    if path is not None:
        written = [str(file) for file in write_torch_csv(given, path)]
        for file in written:
            out.say(f"wrote {file}")
        if out.as_json:
            out.data({"format": target, "files": written})
        return
    with tempfile.TemporaryDirectory() as folder:
        text = write_torch_csv(given, Path(folder, "schedule.csv"))[0].read_text()
    if out.as_json:
        out.data({"format": target, "rows": [line.split(",") for line in text.splitlines()]})
        return
    out.text(text)
    out.say("with -o FILE a second file beside it tells placement, microbatches and figures")
