"""Text from files that others have written: read strictly, shown safely."""

from __future__ import annotations

import codecs

from zbsolve.errors import FileFormatError

__all__ = ["decoded", "shown"]

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
