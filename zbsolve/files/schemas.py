"""JSON schemas of our files, generated from the shapes that the readers use."""

from __future__ import annotations

from typing import Any

import msgspec

from zbsolve.errors import InvalidInput
from zbsolve.files import shapes

__all__ = ["KINDS", "schema"]

_SHAPES = {"profile": shapes.ProfileFile, "timetable": shapes.TimetableFile}

KINDS: tuple[str, ...] = tuple(_SHAPES)
"""The kinds of files that have a schema."""


def schema(kind: str) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a kind of file, ``"profile"`` or ``"timetable"``.

    Raises
    ------
    InvalidInput
        If there is no such kind.
    """
    if kind not in _SHAPES:
        raise InvalidInput(f"there is no schema of {kind!r}; there are those of {', '.join(KINDS)}")
    made = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(_SHAPES[kind])))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"zbsolve {kind}", **made}
