"""torch.distributed.pipelining's schedule files, the only place with torch's letters.

::

    cells      what one cell of a CSV can say, and how torch writes it
    compute    timetable -> compute_only CSV, to which torch adds sends and receives itself
    comms      timetable -> compute_comms CSV, with sends and receives in an order that cannot hang
    read       either CSV -> order, with what is wrong in which row and cell
    messages   are a CSV's sends and receives right, in order, and free of circles

Nothing here imports torch.
"""

from __future__ import annotations

from zbsolve.interop.torch.comms import comms_rows
from zbsolve.interop.torch.compute import FORMAT, merged, numbered_by_loss, torch_csv_bytes, torch_rows, write_torch_csv
from zbsolve.interop.torch.read import TorchSchedule, parse_torch_csv, read_torch_csv

__all__ = [
    "FORMAT",
    "TorchSchedule",
    "comms_rows",
    "merged",
    "numbered_by_loss",
    "parse_torch_csv",
    "read_torch_csv",
    "torch_csv_bytes",
    "torch_rows",
    "write_torch_csv",
]
