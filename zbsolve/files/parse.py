"""From bytes to a shape: JSON or TOML that may be anything becomes a valid shape or one `FileFormatError`."""

from __future__ import annotations

import codecs
import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from zbsolve.disk import MAX_FILE_BYTES, collection_paused
from zbsolve.errors import FileFormatError, InvalidInput
from zbsolve.files import shapes

__all__ = ["located", "parse", "plain"]

_S = TypeVar("_S", shapes.ProfileFile, shapes.TimetableFile)

_FORMATS: dict[type[msgspec.Struct], str] = {shapes.ProfileFile: shapes.PROFILE, shapes.TimetableFile: shapes.TIMETABLE}
_ARTICLES = {"profile": "a profile", "timetable": "a timetable"}
_MOST_PLACES = 2
"""Places that a message names for a field that stands in several."""

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}


@contextmanager
def located(name: object, where: str) -> Iterator[None]:
    """Turn any complaint about what was given into a `FileFormatError` that says where it stands."""
    try:
        yield
    except FileFormatError:
        raise
    except InvalidInput as error:
        raise FileFormatError(name, plain(str(error)), where) from None


def parse(data: bytes, name: object, shape: type[_S], *, toml: bool = False) -> _S:
    """Read the bytes of a file.

    Parameters
    ----------
    data
        The whole content.
    name
        How messages call the file.
    shape
        What is expected.
    toml
        Whether it is TOML; else JSON.

    Raises
    ------
    FileFormatError
        If it is anything else, with the JSON path where there is one.
    """
    if len(data) > MAX_FILE_BYTES:
        raise FileFormatError(name, f"is larger than {MAX_FILE_BYTES // 1024**2} MiB; is it the right file?")
    try:
        with collection_paused():
            tree = _tree(_text(data, name), name, toml=toml)
            _check_format(tree, name, _FORMATS[shape])
            return msgspec.convert(tree, shape)
    except msgspec.ValidationError as error:
        where, message = _explain(str(error), shape)
        raise FileFormatError(name, message, where) from None
    except RecursionError:
        raise FileFormatError(name, "is nested too deeply to be one of our files") from None
    except MemoryError:
        raise FileFormatError(name, "does not fit in memory") from None


def _text(data: bytes, name: object) -> str:
    if data.startswith(codecs.BOM_UTF8):
        raise FileFormatError(name, "begins with a byte order mark; save it as UTF-8 without one")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(name, f"is not UTF-8 text: byte {error.start} cannot be read") from None


def _tree(text: str, name: object, *, toml: bool) -> Any:
    if not text.strip():
        raise FileFormatError(name, "is empty")
    tree = _toml(text, name) if toml else _json(text, name)
    if "\\u" in text:
        found = _find(tree, lambda value: isinstance(value, str) and not _encodable(value))
        if found is not None:
            raise FileFormatError(name, "contains half a surrogate pair, which is no character", found[0])
    return tree


def _toml(text: str, name: object) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(name, f"is not TOML: {plain(str(error))}") from None
    except ValueError:
        # beyond Python's limit for the digits of an integer, and TOML's reader does not say where
        raise FileFormatError(
            name, f"has a number of thousands of digits{_where_digits(text)}; the most is 2^62"
        ) from None


def _where_digits(text: str) -> str:
    """The line of the longest run of digits."""
    runs = list(re.finditer(r"[0-9_]{1000,}", text))
    return f" in line {text.count(chr(10), 0, runs[0].start()) + 1}" if runs else ""


class _Twice(dict[str, Any]):
    """An object in which a field is given twice."""

    field: str


def _json(text: str, name: object) -> Any:
    twice = False

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        made = dict(pairs)
        if len(made) == len(pairs):
            return made
        twice = True
        marked = _Twice(made)
        left = dict(made)
        marked.field = next(key for key, _ in pairs if left.pop(key, made) is made)
        return marked

    try:
        tree = json.loads(text, object_pairs_hook=build)
    except json.JSONDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:].removesuffix(" starting at")
        cut_off = error.pos >= len(text.rstrip()) or reason == "unterminated string"
        raise FileFormatError(
            name,
            f"is not JSON: {reason} in line {error.lineno}, column {error.colno}"
            + ("; the file seems cut off" if cut_off else ""),
        ) from None
    except ValueError:
        # beyond Python's limit for the digits of an integer: clipped, its field will refuse it by name
        tree = json.loads(text, object_pairs_hook=build, parse_int=lambda digits: int(digits[:100]))
    if twice:
        where, found = _find(tree, lambda value: isinstance(value, _Twice)) or ("$", tree)
        raise FileFormatError(name, f"the field {_quoted(found.field)} is given twice; keep one", where)
    return tree


def _find(tree: Any, wanted: Callable[[Any], bool]) -> tuple[str, Any] | None:
    """JSON path and value of the first value (or the object of the first key) that is wanted; no recursion."""
    stack = [(tree, "$")]
    while stack:
        value, where = stack.pop()
        if wanted(value):
            return where, value
        if isinstance(value, dict):
            for key in value:
                if wanted(key):
                    return where, value
            stack += [(child, f"{where}.{plain(key)}") for key, child in reversed(value.items())]
        elif isinstance(value, list):
            stack += [(child, f"{where}[{i}]") for i, child in reversed(list(enumerate(value)))]
    return None


def _check_format(tree: Any, name: object, expected: str) -> None:
    kind = expected.removeprefix("zbsolve.").split("/")[0]
    if not isinstance(tree, dict):
        raise FileFormatError(name, f"is not {_ARTICLES[kind]}: it must be an object with the field 'format'", "$")
    given = tree.get("format")
    if given is None:
        raise FileFormatError(name, f"lacks the field 'format'; {_ARTICLES[kind]} says {_quoted(expected)} there", "$")
    if not isinstance(given, str):
        raise FileFormatError(name, f"expected {_quoted(expected)}", "$.format")
    if given == expected:
        return
    match = re.fullmatch(r"zbsolve\.([a-z-]{1,40})/(\d{1,9})", given)
    if match is None:
        raise FileFormatError(
            name, f"{_quoted(given)} is no format of zbsolve; expected {_quoted(expected)}", "$.format"
        )
    if match.group(1) == kind:
        raise FileFormatError(
            name, f"is version {match.group(2)}; this zbsolve reads version {expected.split('/')[1]}", "$.format"
        )
    other = _ARTICLES.get(match.group(1), f"a file of the kind {match.group(1)!r}")
    raise FileFormatError(name, f"is {other}, but {_ARTICLES[kind]} is needed here", "$.format")


def _explain(message: str, shape: type[msgspec.Struct]) -> tuple[str, str]:
    """Split msgspec's message into JSON path and plain words."""
    text, _, tail = message.rpartition(" - at `")
    text, where = (text, tail.rstrip("`")) if text else (message, "$")
    if not where.startswith("$"):
        where = "$"
    if match := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        field = plain(match.group(1))
        return f"{where}.{field}", f"unknown field; {_hint(field, where, shape)}"
    if match := re.fullmatch(r"Object missing required field `(.*)`", text, re.DOTALL):
        return where, f"the field {_quoted(match.group(1))} is missing"
    if match := re.fullmatch(r"Invalid enum value (.*)", text, re.DOTALL):
        return where, f"{plain(match.group(1))} is not one of the words allowed here; see zbsolve schema"
    if match := re.fullmatch(r"Expected `(.*)` (of length )?(>=|<=) (\d+)", text):
        least = "at least" if match.group(3) == ">=" else "at most"
        limit = "2^62" if match.group(4) == str(2**62) else match.group(4)
        unit = ("" if match.group(1) != "str" else " characters") if match.group(2) else ""
        return where, f"expected {_worded(match.group(1))} {'of ' if match.group(2) else ''}{least} {limit}{unit}"
    text = re.sub(r"of at (least|most) length (\d+)", r"of at \1 \2 elements", text)
    text = re.sub(r"`([^`]*)`", lambda m: _worded(m.group(1)), text)
    return where, plain(text[:1].lower() + text[1:])


def _hint(field: str, where: str, shape: type[msgspec.Struct]) -> str:
    """What to do with a field that is not known where it stands: mend the name, move it, or remove it."""
    places = dict(_places(shape, "$"))
    here = places.get(re.sub(r"\[[^]]*\]", "[]", where), ())
    if near := difflib.get_close_matches(field, here, 1):
        return f"did you mean {_quoted(near[0])}?"
    if at := [place for place, known in places.items() if field in known]:
        return f"it belongs in {' or '.join(sorted(at, key=len)[:_MOST_PLACES])}"
    for other, name in _FORMATS.items():
        at = [place for place, known in _places(other, "$") if field in known]
        if at and other is not shape:
            return f"it belongs in {min(at, key=len)} of {_ARTICLES[name.removeprefix('zbsolve.').split('/')[0]]}"
    near = difflib.get_close_matches(field, sorted({known for fields in places.values() for known in fields}), 1)
    return f"did you mean {_quoted(near[0])}?" if near else "remove it"


def _places(shape: type[msgspec.Struct], at: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Where a file may have an object, and the fields that each knows; elements of lists stand at ``[]``."""
    yield at, shape.__struct_fields__
    for field, kind in get_type_hints(shape).items():
        for inner, element in _objects(kind):
            yield from _places(inner, f"{at}.{field}{element}")


def _objects(kind: Any) -> Iterator[tuple[type[msgspec.Struct], str]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if not kind.__struct_config__.array_like:
            yield kind, ""
        return
    element = "[]" if get_origin(kind) is list else ""
    for part in get_args(kind):
        yield from ((inner, element + deeper) for inner, deeper in _objects(part))


def _worded(types: str) -> str:
    return " or ".join(_WORDS.get(t, t) for t in types.split(" | "))


def _quoted(text: str) -> str:
    return f"'{plain(text)}'"


def plain(text: str) -> str:
    """Printable and short: what a file says must not steer the terminal that shows the message."""
    shown = text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:500])
    return shown if len(shown) <= 400 else shown[:397] + "..."


def _encodable(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)
