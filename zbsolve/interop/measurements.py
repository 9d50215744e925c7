"""Which tool has written a file of measurements, and reading several of one tool as one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from zbsolve.errors import FileFormatError, InvalidInput
from zbsolve.interop.nsight import header_of, read_nsight
from zbsolve.interop.samples import Given, Samples, merged_samples, profile_of
from zbsolve.interop.stage_csv import read_stage_csv
from zbsolve.interop.text import GZIP, unpacked
from zbsolve.interop.torch_profiler import read_torch_profiler, refuse_other_runs
from zbsolve.interop.zero_bubble import MARK, read_zero_bubble_log
from zbsolve.profile import Profile

__all__ = ["TOOLS", "Reading", "import_profile", "tool_of"]

Tool = Literal["torch-profiler", "zero-bubble", "nsight", "csv"]
TOOLS: tuple[Tool, ...] = ("torch-profiler", "zero-bubble", "nsight", "csv")

_LOOKED_AT = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What readers of some tools want to know.

    Parameters
    ----------
    skip_steps
        torch-profiler: steps at the beginning that do not count; None is the first, if there are more.
    ranks, placement
        zero-bubble: pipeline ranks, and where several chunks lie; None is a V.
    """

    skip_steps: int | None = None
    ranks: int | None = None
    placement: Literal["v", "looped"] | None = None


def tool_of(data: bytes, name: object) -> Tool:
    """Which tool has written a file, by what stands in it.

    Raises
    ------
    FileFormatError
        If that cannot be told.
    """
    if data.startswith(GZIP):
        data = unpacked(data, name)
    start = data[:_LOOKED_AT].decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if start.startswith("{"):
        return "torch-profiler"
    if MARK.encode() in data:  # its lines may begin with a rank in brackets
        return "zero-bubble"
    if start.startswith("["):
        return "torch-profiler"
    lines = start.splitlines()
    if any(header_of([cell.strip().strip('"') for cell in line.split(",")]) for line in lines):
        return "nsight"
    if lines and "stage" in [cell.strip() for cell in lines[0].split(",")]:
        return "csv"
    raise FileFormatError(name, f"is of no tool that is known here; say --from {', '.join(TOOLS)}")


def import_profile(
    files: Sequence[tuple[bytes, object]], given: Given, *, tool: Tool | None = None, reading: Reading | None = None
) -> tuple[Profile, tuple[str, ...]]:
    """A profile from what one tool has measured, in one file or several.

    Parameters
    ----------
    files
        The content of each, and what messages call it.
    given
        Bytes and links, of which durations say nothing.
    tool
        Which has measured; default told by content.
    reading
        What readers of some tools want to know.

    Returns
    -------
    The profile, and what had to be assumed or should be known.

    Raises
    ------
    FileFormatError
        If a file is not what it should be, or the files leave out a stage.
    InvalidInput
        If what was given does not fit, or is for files of another tool.
    """
    reading = reading or Reading()
    _refuse_twice(files)
    tools = {tool or tool_of(data, name) for data, name in files}
    names = ", ".join(str(name) for _, name in files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    if len(tools) > 1:
        raise FileFormatError(names, f"files of several tools: {', '.join(sorted(tools))}; give those of one")
    read = tools.pop()
    for option, its, value in (
        ("ranks", "zero-bubble", reading.ranks),
        ("placement", "zero-bubble", reading.placement),
        ("skip-steps", "torch-profiler", reading.skip_steps),
    ):
        if value is not None and read != its:
            raise InvalidInput(f"--{option} is for files of {its}, but {names} is of {read}; leave it out")
    return profile_of(_read(read, files, names, reading), given, names)


def _refuse_twice(files: Sequence[tuple[bytes, object]]) -> None:
    seen: dict[bytes, object] = {}
    for data, name in files:
        content = hashlib.sha256(data).digest()
        if content in seen:
            raise FileFormatError(name, f"holds the same as {seen[content]}; give each file once")
        seen[content] = name


def _read(tool: Tool, files: Sequence[tuple[bytes, object]], names: str, reading: Reading) -> Samples:
    if tool == "zero-bubble":  # a rank may have a log of its own
        together = b"\n".join(unpacked(data, name) for data, name in files)
        return read_zero_bubble_log(together, names, ranks=reading.ranks, placement=reading.placement or "v")
    if tool == "torch-profiler":
        parts = [read_torch_profiler(data, n, skip_steps=reading.skip_steps) for data, n in files]
        refuse_other_runs(parts, [name for _, name in files])
        return merged_samples(parts)
    read = read_nsight if tool == "nsight" else read_stage_csv
    return merged_samples([read(unpacked(data, name), name) for data, name in files])
