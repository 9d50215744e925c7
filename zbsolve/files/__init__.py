"""Our own file formats: strict readers and writers, and the JSON schemas made from the same shapes."""

from __future__ import annotations

from zbsolve.disk import ensure_writable, read_regular, write_atomic
from zbsolve.files.profile import profile_bytes, read_profile, read_profile_bytes, write_profile
from zbsolve.files.schemas import KINDS, schema
from zbsolve.files.timetable import (
    SolverRecord,
    read_record_bytes,
    read_solution_record,
    read_timetable,
    read_timetable_bytes,
    solution_of,
    timetable_bytes,
    write_timetable,
)

__all__ = [
    "KINDS",
    "SolverRecord",
    "ensure_writable",
    "profile_bytes",
    "read_profile",
    "read_profile_bytes",
    "read_record_bytes",
    "read_regular",
    "read_solution_record",
    "read_timetable",
    "read_timetable_bytes",
    "schema",
    "solution_of",
    "timetable_bytes",
    "write_atomic",
    "write_profile",
    "write_timetable",
]
