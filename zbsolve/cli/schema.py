"""`zbsolve schema`: the JSON schema of a file kind."""

from __future__ import annotations

import json

import click

from zbsolve.cli._output import Output, output_option, talk_options

__all__ = ["schema"]


@click.command()
@click.argument("kind", type=click.Choice(["profile", "timetable"]))
@output_option("Write it there instead of stdout.")
@talk_options
def schema(*, kind: str, output: str | None, out: Output) -> None:
    """Print the JSON schema of a KIND of file."""
    from zbsolve.files import schema as schema_of

    made = schema_of(kind)
    if output is None:
        out.data(made)
        return
    out = out.for_file(output)
    out.write(output, (json.dumps(made, indent=2) + "\n").encode())
    if out.as_json:
        out.data({"files": [output]})
