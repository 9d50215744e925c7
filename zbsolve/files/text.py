"""Plain values as JSON and TOML that people can read: one stage, one operation a line."""

from __future__ import annotations

import json
import re
from typing import Any

from zbsolve.errors import ProfileError

__all__ = ["json_bytes", "toml_bytes"]


def json_bytes(value: dict[str, Any]) -> bytes:
    """UTF-8 JSON: objects spread over lines, but each element of a list on one; ends with a newline."""
    return _encoded("".join(_json(value, "")) + "\n")


def _json(value: Any, pad: str) -> list[str]:
    if isinstance(value, dict) and value:
        items = [[f"{pad}  {_word(key)}: ", *_json(item, pad + "  ")] for key, item in value.items()]
        return ["{\n", *_joined(items), f"\n{pad}}}"]
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        items = [[pad, "  ", *_element(item, pad + "  ")] for item in value]
        return ["[\n", *_joined(items), f"\n{pad}]"]
    return [_word(value)]


def _element(item: Any, pad: str) -> list[str]:
    return _json(item, pad) if isinstance(item, list) else [_word(item)]


def _joined(items: list[list[str]]) -> list[str]:
    for item in items[:-1]:
        item.append(",\n")
    return [piece for item in items for piece in item]


def _word(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


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
