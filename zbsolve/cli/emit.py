"""`zbsolve emit`: a timetable in the format of another tool."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from zbsolve.cli import _inputs
from zbsolve.cli._output import FILE, STDOUT, Output, output_option, talk_options

if TYPE_CHECKING:
    from zbsolve.timetable import Timetable

__all__ = ["emit"]

_COUNTS = re.compile(r"\d{1,6}(,\d{1,6}){0,4095}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be emitted, under which name, and what else was given."""

    timetable: Timetable
    name: str
    measured: Timetable | None = None
    layers: tuple[int, ...] | None = None
    titan: str | None = None


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """The content of the file, of the one beside it, and what a reader should be told."""

    content: bytes
    beside: bytes | None = None
    notes: tuple[str, ...] = ()


def _torch_csv(asked: Asked) -> Emitted:
    from zbsolve.interop.torch import torch_csv_bytes

    content, beside = torch_csv_bytes(asked.timetable, asked.name)
    return Emitted(content=content, beside=beside)


def _torch_csv_comms(asked: Asked) -> Emitted:
    from zbsolve.interop.torch import torch_csv_bytes

    content, beside = torch_csv_bytes(asked.timetable, asked.name, csv_format="compute_comms")
    return Emitted(content=content, beside=beside)


def _perfetto(asked: Asked) -> Emitted:
    from zbsolve.interop.perfetto import perfetto_bytes

    return Emitted(content=perfetto_bytes(asked.timetable, asked.measured))


def _torchtitan(asked: Asked) -> Emitted:
    from zbsolve.interop.torchtitan import torchtitan_files

    content, beside = torchtitan_files(asked.timetable, asked.name, layers=asked.layers, titan=asked.titan)
    unsaid = () if asked.layers is not None else ("the model is split evenly; --layers says otherwise",)
    return Emitted(content=content, beside=beside, notes=unsaid)


def _csv(asked: Asked) -> Emitted:
    from zbsolve.interop.tidy import tidy_csv

    return Emitted(content=tidy_csv(asked.timetable).encode())


def _primus(asked: Asked) -> Emitted:
    from zbsolve.interop.primus import primus_json

    text, notes = primus_json(asked.timetable)
    return Emitted(content=text.encode(), notes=notes)


def _zero_bubble(asked: Asked) -> Emitted:
    from zbsolve.interop.zero_bubble import zero_bubble_json

    text, notes = zero_bubble_json(asked.timetable)
    return Emitted(content=text.encode(), notes=notes)


def _megatron_layout(asked: Asked) -> Emitted:
    from zbsolve.interop.megatron import megatron_layout

    if asked.layers is None:
        raise click.UsageError("--to megatron-layout needs --layers: how many layers each stage holds.")
    layout = megatron_layout(asked.timetable.problem, asked.layers)
    note = "for --pipeline-model-parallel-layout; Megatron-LM takes the stages only and runs a schedule of its own"
    return Emitted(content=f"{layout}\n".encode(), notes=(note,))


@dataclass(frozen=True)
class Format:
    """How a format is made, what it is, the suffix of a file beside it, and which options it takes."""

    make: Callable[[Asked], Emitted]
    kind: Literal["csv", "json", "text"]
    beside: str = ""
    options: frozenset[str] = frozenset()


FORMATS = {
    "torch-csv": Format(_torch_csv, "csv", beside=".json"),
    "torch-csv-comms": Format(_torch_csv_comms, "csv", beside=".json"),
    "torchtitan": Format(_torchtitan, "csv", beside=".settings", options=frozenset({"layers", "torchtitan"})),
    "perfetto": Format(_perfetto, "json", options=frozenset({"measured"})),
    "csv": Format(_csv, "csv"),
    "primus": Format(_primus, "json"),
    "zero-bubble": Format(_zero_bubble, "json"),
    "megatron-layout": Format(_megatron_layout, "text", options=frozenset({"layers"})),
}


def _layers(ctx: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    if not _COUNTS.fullmatch(text):
        if re.fullmatch(r"\d+(,\d+)*", text, re.ASCII):
            shown = text if len(text) <= 30 else f"{text[:30]}..."
            raise click.BadParameter(f"{shown}: a stage has fewer than 1000000 layers, a model at most 4096 stages.")
        raise click.BadParameter(f"{text!r} is no list of layers, one number a stage, such as 3,4,4,3.")
    return tuple(map(int, text.split(",")))


@click.command()
@click.argument("timetable", metavar="T.json", type=FILE)
@click.option("--to", "target", type=click.Choice(tuple(FORMATS)), required=True, help="The format.")
@output_option("Write there; the torch formats put a second file with the rest beside it.")
@click.option(
    "--measured", type=FILE, metavar="M.json", help="perfetto: the same order with measured times, shown beside it."
)
@click.option("--layers", metavar="N,N,...", callback=_layers, help="torchtitan, megatron-layout: of each stage.")
@click.option("--torchtitan", metavar="VERSION", help="0.2, 0.3 or main; default the installed one, else 0.3.")
@talk_options
def emit(
    *,
    timetable: str,
    target: str,
    output: str | None,
    measured: str | None,
    layers: tuple[int, ...] | None,
    torchtitan: str | None,
    out: Output,
) -> None:
    """Hand T.json to another tool.

    \b
    torch-csv        what torch.distributed.pipelining loads: one row a rank,
                     compute operations only
    torch-csv-comms  the same with sends and receives, in an order that cannot hang
    torchtitan       torch-csv, and beside it the settings of TorchTitan
    perfetto         a trace for ui.perfetto.dev
    csv              a table for pandas, an operation a row
    primus           node tables of AMD's Primus, for examples/primus_adapter.py
    zero-bubble      node tables of the zero-bubble code, for
                     examples/zero_bubble_adapter.py
    megatron-layout  Megatron-LM's --pipeline-model-parallel-layout

    The timetable is judged first: exit code 1, and nothing is written, where it
    breaks a rule.
    """  # noqa: D301
    chosen = FORMATS[target]
    for option, given_as in (("measured", measured), ("layers", layers), ("torchtitan", torchtitan)):
        if given_as is not None and option not in chosen.options:
            raise click.UsageError(f"--to {target} has no use for --{option}.")
    path = None if output in (None, STDOUT) else output
    out = out.for_file(output, timetable, measured, beside=chosen.beside)
    _inputs.titles(tuple(file for file in (timetable, measured) if file))
    if path is not None and chosen.beside:
        from zbsolve.files import ensure_writable

        ensure_writable(path + chosen.beside)
    given = _inputs.read_sound(timetable)
    asked = Asked(
        timetable=given,
        name=Path(path).name if path is not None else f"schedule.{chosen.kind}",
        measured=None if measured is None else _inputs.read_timetable(measured),
        layers=layers,
        titan=torchtitan,
    )
    made = chosen.make(asked)
    for note in made.notes:
        out.say(note)
    if path is not None:
        written = {path: made.content} | ({} if made.beside is None else {path + chosen.beside: made.beside})
        for file, content in written.items():
            out.write(file, content)
        if out.as_json:
            out.data({"format": target, "files": list(written)})
        return
    text = made.content.decode()
    if out.as_json:
        out.data({"format": target, **_as_field(chosen.kind, text)})
        return
    out.text(text)
    if made.beside is not None:
        out.say("with -o FILE a second file beside it tells placement, microbatches and figures")


def _as_field(kind: str, text: str) -> dict[str, object]:
    """The content as a field of an object: rows of cells, a JSON value, or text."""
    if kind == "json":
        return {"content": json.loads(text)}
    if kind == "text":
        return {"text": text}
    return {"rows": [line.split(",") for line in text.splitlines()]}
