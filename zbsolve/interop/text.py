"""Text from files that others have written: read strictly, shown safely."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from typing import Any

from zbsolve.disk import MAX_FILE_BYTES, collection_paused
from zbsolve.errors import FileFormatError

__all__ = ["csv_rows", "decoded", "json_of", "shown", "unpacked"]

GZIP = b"\x1f\x8b"

_LONGEST_SHOWN = 60


def decoded(data: bytes, name: object) -> str:
    """Bytes as UTF-8 text; a byte order mark, which spreadsheets write, is left out.

    Raises
    ------
    FileFormatError
        If it is no UTF-8 or holds nothing.
    """
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(name, f"is not UTF-8 text: byte {error.start} cannot be read") from None
    if not text.strip():
        raise FileFormatError(name, "is empty")
    return text


def shown(text: object) -> str:
    """A piece of a file in quotes: printable, and short."""
    piece = ascii(str(text)[: _LONGEST_SHOWN + 1])[1:-1]
    return f"'{piece if len(piece) <= _LONGEST_SHOWN else piece[: _LONGEST_SHOWN - 3] + '...'}'"


def unpacked(data: bytes, name: object) -> bytes:
    """What a gzipped file holds; other bytes as they are.

    Raises
    ------
    FileFormatError
        If it is damaged, or holds more than a file may.
    """
    if data.startswith(GZIP):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise FileFormatError(name, f"cannot be unpacked: {error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise FileFormatError(name, f"is larger than {MAX_FILE_BYTES // 1024**2} MiB; keep fewer steps of it")
    return data


def json_of(data: bytes, name: object) -> Any:
    """A JSON value, also gzipped; numbers beyond reason become infinite, for the reader of a field to refuse.

    Raises
    ------
    FileFormatError
        If it is no JSON.
    """
    text = decoded(unpacked(data, name), name)
    try:
        with collection_paused():
            return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 40 else float("inf"))
    except json.JSONDecodeError as error:
        raise FileFormatError(
            name, f"is not JSON: {error.msg[:1].lower()}{error.msg[1:]}, line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise FileFormatError(name, "is nested too deeply") from None
    except MemoryError:
        raise FileFormatError(name, "does not fit in memory") from None


def csv_rows(text: str, name: object) -> Iterator[tuple[int, list[str]]]:
    """Rows of a CSV with cells in them, each with the number of its line.

    Raises
    ------
    FileFormatError
        If quotes do not match, or a cell is beyond reason.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, [cell.strip() for cell in row]
    except csv.Error as error:
        raise FileFormatError(name, f"cannot be read as CSV: {error}", f"line {reader.line_num}") from None
