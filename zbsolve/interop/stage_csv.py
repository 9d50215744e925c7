"""Plain tables of measurements: a row a stage, or several rows a stage, which are its samples.

::

    stage,forward_ms,backward_input_ms,backward_weight_ms,activation_mib
    0,18.5,18.1,9.3,197

`stage` counts from 0. A duration is `forward`, `backward_input`, `backward_weight` or `backward` (both in one) with
``_ns``, ``_us``, ``_ms`` or ``_s``; a size is a field of a profile's stage with ``_bytes``, ``_kib``, ``_mib`` or
``_gib`` in place of ``_bytes``. `name` may stand there too.
"""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal

from zbsolve.errors import FileFormatError, UnitError
from zbsolve.interop.samples import BYTE_FIELDS, Samples
from zbsolve.interop.text import csv_rows, decoded, shown
from zbsolve.ops import Kind
from zbsolve.profile import MAX_STAGES
from zbsolve.units import parse_bytes, parse_ns

__all__ = ["read_stage_csv"]

_DURATIONS = {
    "forward": Kind.FORWARD,
    "backward_input": Kind.BACKWARD_INPUT,
    "backward_weight": Kind.BACKWARD_WEIGHT,
    "backward": Kind.BACKWARD,
}
_TIMES = ("ns", "us", "ms", "s")
_SIZES = {"bytes": "B", "kib": "KiB", "mib": "MiB", "gib": "GiB"}
_MOST_ROWS = 1_000_000
_EXAMPLE = "stage,forward_ms,backward_input_ms,backward_weight_ms"


def read_stage_csv(data: bytes, name: object) -> Samples:
    """Read a table.

    Raises
    ------
    FileFormatError
        If it is none, with line and column.
    """
    rows = csv_rows(decoded(data, name), name)
    line, header = next(rows)
    columns = [_column(text, name, line) for text in header]
    if "stage" not in header:
        raise FileFormatError(name, f"has no column 'stage'; its first line is such as {_EXAMPLE}", f"line {line}")
    if len(set(header)) < len(header):
        raise FileFormatError(name, "a column is given twice", f"line {line}")
    durations: dict[tuple[int, Kind], list[int]] = defaultdict(list)
    known: dict[int, dict[str, int | str]] = defaultdict(dict)
    for count, (at, cells) in enumerate(rows):
        if count >= _MOST_ROWS:
            raise FileFormatError(name, f"has more than {_MOST_ROWS} rows; is it the right file?")
        if len(cells) != len(header):
            raise FileFormatError(name, f"has {len(cells)} cells, the first line has {len(header)}", f"line {at}")
        stage = _stage(cells[header.index("stage")], name, f"line {at}, column stage")
        for title, (kind, unit), cell in zip(header, columns, cells, strict=True):
            if title == "stage" or not cell:
                continue
            where = f"line {at}, column {title}"
            if isinstance(kind, Kind):
                durations[stage, kind].append(_amount(cell, unit, name, where))
            elif kind == "name":
                known[stage]["name"] = cell[:200]
            elif known[stage].setdefault(kind, value := _amount(cell, unit, name, where)) != value:
                raise FileFormatError(name, f"stage {stage} has another value above", where)
    return Samples(durations=dict(durations), known=dict(known), tool="a table")


def _column(text: str, name: object, line: int) -> tuple[Kind | str, str]:
    """The kind of a duration or the field of a size, with its unit."""
    if text in ("stage", "name"):
        return text, ""
    what, _, unit = text.rpartition("_")
    if unit in _TIMES and what in _DURATIONS:
        return _DURATIONS[what], unit
    if unit in _SIZES and f"{what}_bytes" in BYTE_FIELDS:
        return f"{what}_bytes", _SIZES[unit]
    raise FileFormatError(name, f"{shown(text)} is no column of such a table; {_EXAMPLE} are", f"line {line}")


def _stage(text: str, name: object, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < MAX_STAGES):
        raise FileFormatError(
            name, f"expected a stage, numbered from 0 and below {MAX_STAGES}, got {shown(text)}", where
        )
    return int(text)


def _amount(text: str, unit: str, name: object, where: str) -> int:
    """A decimal number with the unit of its column, rounded to a whole one of ns or bytes."""
    scale = {"ns": 0, "us": 3, "ms": 6, "s": 9}.get(unit)
    try:
        if scale is None:
            return parse_bytes(text + unit)
        if len(text) > 40 or not text.replace(".", "", 1).isdigit() or not text.isascii():
            raise UnitError("no number")
        return parse_ns(int(Decimal(text).scaleb(scale).to_integral_value()))
    except UnitError:
        raise FileFormatError(name, f"expected a number of {unit}, 0 or more, got {shown(text)}", where) from None
