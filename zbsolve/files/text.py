"""Plain values as JSON and TOML that people can read: one stage, one operation a line."""

from __future__ import annotations

import json
import re
from typing import Any

from zbsolve.errors import ProfileError

__all__ = ["json_bytes", "toml_bytes"]


_word = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode  # one encoder for all: thrice as fast


def json_bytes(value: dict[str, Any]) -> bytes:
    """UTF-8 JSON: objects spread over lines, but each element of a list on one; ends with a newline."""
    return _encoded(_json(value, "") + "\n")


def _json(value: Any, pad: str) -> str:
    deeper = pad + "  "
    if isinstance(value, dict) and value:
        return _lines("{", [f"{_word(key)}: {_json(item, deeper)}" for key, item in value.items()], pad, "}")
    if isinstance(value, list) and value and isinstance(value[0], dict | list):  # an operation begins with its kind
        return _lines("[", [_json(v, deeper) if isinstance(v, list) else _word(v) for v in value], pad, "]")
    return _word(value)


def _lines(start: str, items: list[str], pad: str, end: str) -> str:
    inside = f",\n{pad}  ".join(items)
    return f"{start}\n{pad}  {inside}\n{pad}{end}"


def toml_bytes(value: dict[str, Any]) -> bytes:
    """UTF-8 TOML: plain values first, then tables, then lists of tables; there is no null in TOML."""
    return _encoded("\n".join(_table(value, "")).lstrip("\n") + "\n")


def _table(table: dict[str, Any], path: str) -> list[str]:
    lines, below = [], []
    for key, item in table.items():
        name = _toml_key(key)
        if isinstance(item, dict):
            below += ["", f"[{path}{name}]", *_table(item, f"{path}{name}.")]
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            for element in item:
                below += ["", f"[[{path}{name}]]", *_table(element, f"{path}{name}.")]
        else:
            lines.append(f"{name} = {_toml_word(item)}")
    return lines + below


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_word(key)


def _toml_word(value: Any) -> str:
    return _word(value).replace("\x7f", "\\u007f")  # TOML escapes what JSON does, and DEL


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ProfileError("a name or note contains half a surrogate pair, which cannot be written") from None
