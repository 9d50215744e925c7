"""Summaries of NVTX ranges by Nsight Systems, as CSV: ``nsys stats --format csv --report nvtx_sum`` and its relatives.

Each range is a row with its median. Ranges are named as in `ranges`: by torch under `emit_nvtx`, or by our executor.
Times of ``nvtx_sum`` and ``nvtx_pushpop_sum`` are the host's, with its waiting; ``nvtx_gpu_proj_sum`` tells what the
GPU did, and is what to use on one.

Source: "Nsight Systems Analysis Guide", https://docs.nvidia.com/nsight-systems/AnalysisGuide/index.html.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict

from zbsolve.errors import FileFormatError
from zbsolve.interop.ranges import operation_of
from zbsolve.interop.samples import Samples
from zbsolve.interop.text import csv_rows, decoded, shown
from zbsolve.ops import Kind
from zbsolve.units import MAX_AMOUNT

__all__ = ["header_of", "read_nsight"]

_UNITS = {"ns": 1, "nsec": 1, "us": 10**3, "usec": 10**3, "ms": 10**6, "msec": 10**6, "s": 10**9, "sec": 10**9}
_MOST_ROWS = 1_000_000
_COLUMN = re.compile(r"(Proj )?(Med|Avg) \(([a-z]{1,4})\)")


def header_of(cells: list[str]) -> bool:
    """Whether a row is the header of such a summary."""
    return ("Range" in cells or "Name" in cells) and any(_COLUMN.fullmatch(cell) for cell in cells)


def read_nsight(data: bytes, name: object) -> Samples:
    """Read a summary; what nsys prints around it is skipped.

    Raises
    ------
    FileFormatError
        If there is no such summary, or no range of an operation in it.
    """
    durations: dict[tuple[int, Kind], list[int]] = defaultdict(list)
    header: list[str] | None = None
    projected = False
    for line, cells in csv_rows(decoded(data, name), name):
        if line > _MOST_ROWS:
            raise FileFormatError(name, f"has more than {_MOST_ROWS} lines; is it the right file?")
        if header_of(cells):
            header = cells
            continue
        if header is None or len(cells) < len(header):
            continue
        found = operation_of(cells[header.index("Range" if "Range" in header else "Name")])
        if found is None:
            continue
        column = min(
            (c for c in header if _COLUMN.fullmatch(c)), key=lambda c: (not c.startswith("Proj"), "Med" not in c)
        )
        projected = column.startswith("Proj")
        match = _COLUMN.fullmatch(column)
        assert match is not None
        where = f"line {line}, column {column}"
        if match.group(3) not in _UNITS:
            raise FileFormatError(name, f"the unit of {shown(column)} is none of {', '.join(_UNITS)}", where)
        durations[found.stage, found.kind].append(_ns(cells[header.index(column)], _UNITS[match.group(3)], name, where))
    if header is None:
        raise FileFormatError(name, "is no summary of ranges: it has no line with the columns Range and Med (ns)")
    if not durations:
        raise FileFormatError(
            name, "has no range of a pipeline's operation, such as PP:0F0 of torch or F0 of stage 0 of zbsolve"
        )
    notes = () if projected else ("these are the host's times, waiting included; on a GPU use nvtx_gpu_proj_sum",)
    return Samples(durations=dict(durations), tool="Nsight Systems", notes=notes)


def _ns(text: str, scale: int, name: object, where: str) -> int:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if not (len(text) < 60 and math.isfinite(value) and 0 <= value * scale <= MAX_AMOUNT):
        raise FileFormatError(name, f"expected a duration, got {shown(text)}", where)
    return round(value * scale)
