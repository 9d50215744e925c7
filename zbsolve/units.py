"""Durations in nanoseconds and sizes in bytes: reading and writing them for people.

Everything inside zbsolve is an integer of ns or bytes. Text comes in as ``"18.5ms"`` or
``"72GiB"`` and is read exactly, as a decimal number.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

from zbsolve.errors import UnitError

__all__ = [
    "MAX_AMOUNT",
    "MAX_FACTOR",
    "counted",
    "format_bytes",
    "format_ns",
    "parse_bytes",
    "parse_factor",
    "parse_ns",
    "parse_share",
    "scaled",
    "whole_amount",
]

MAX_AMOUNT = 2**62
"""Largest number of ns or bytes zbsolve handles: sums of two still fit a signed 64-bit integer."""

MAX_FACTOR = 10**6
"""Largest factor by which a duration or a size may be multiplied."""

_FACTOR = re.compile(r"\s*(\d{1,7}(?:\.\d{1,18})?)\s*", re.ASCII)
_SHARE = re.compile(r"\s*(\d{1,7}(?:\.\d{1,12})?)\s*(%?)\s*", re.ASCII)
_NUMBER = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([A-Za-zµμ]*)\s*", re.ASCII | re.IGNORECASE)

_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}
_BYTES = {
    "B": 1,
    **{f"{p}B": 1000**k for k, p in enumerate(("k", "M", "G", "T", "P"), start=1)},
    "KB": 1000,
    **{f"{p}iB": 1024**k for k, p in enumerate(("K", "M", "G", "T", "P"), start=1)},
}


def whole_amount(value: object, what: str, *, error: type[Exception] = UnitError) -> int:
    """Return `value` if it is an integer in ``0..2**62``, else raise `error` naming `what`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise error(f"{what} must be a whole number, got {_shown(value)}")
    if value < 0:
        raise error(f"{what} must not be negative, got {_shown(value)}")
    if value > MAX_AMOUNT:
        raise error(f"{what} must be at most 2^62, got {_shown(value)}")
    return value


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) > 10**30:
        return "a number of more than 30 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _parse(value: object, units: dict[str, int], example: str, what: str) -> int:
    if not isinstance(value, str):
        return whole_amount(value, what)
    match = _NUMBER.fullmatch(value)
    unit = match.group(2) if match else ""
    if match is None or (unit and unit not in units):
        raise UnitError(
            f"{what}: cannot read {_shown(value)}; write a whole number or a number with one of "
            f"{', '.join(units)}, such as {example!r}"
        )
    amount = Fraction(match.group(1)) * (units[unit] if unit else 1)
    if amount.denominator != 1:
        raise UnitError(f"{what}: {_shown(value)} is not a whole number of {next(iter(units))}")
    return whole_amount(int(amount), what)


def parse_ns(value: object, what: str = "a duration") -> int:
    """Read a duration: an integer of ns, or text such as ``"18.5ms"``.

    Raises
    ------
    UnitError
        If it is neither, negative, above 2^62 ns, or not a whole number of ns.
    """
    return _parse(value, _NS, "18.5ms", what)


def parse_bytes(value: object, what: str = "a size") -> int:
    """Read a size: an integer of bytes, or text such as ``"72GiB"`` (powers of 1024) or ``"72GB"``.

    Raises
    ------
    UnitError
        If it is neither, negative, above 2^62 bytes, or not a whole number of bytes.
    """
    return _parse(value, _BYTES, "72GiB", what)


def parse_factor(value: object, what: str = "a factor", *, error: type[Exception] = UnitError) -> Decimal:
    """Read a factor exactly: a whole number, text such as ``"1.25"``, a Decimal, or a float as it is printed.

    Raises
    ------
    UnitError
        Or `error`, if it is none of these, 0 or negative, above a million, or has more than 18 decimals.
    """
    text = value if isinstance(value, str) else "" if isinstance(value, bool) else _digits(value)
    match = _FACTOR.fullmatch(text)
    factor = Decimal(match.group(1)) if match else Decimal(0)
    if not 0 < factor <= MAX_FACTOR:
        raise error(
            f"{what} must be a decimal number above 0, at most {MAX_FACTOR} and with at most 18 decimals, "
            f"such as '1.25'; got {_shown(value)}"
        )
    return factor.normalize() if factor % 1 else Decimal(int(factor))  # one spelling for each number


def parse_share(text: str, what: str = "a share") -> float:
    """Read a share of something: ``"5%"``, or ``"0.05"``.

    Raises
    ------
    UnitError
        If it is neither.
    """
    match = _SHARE.fullmatch(text)
    if match is None:
        raise UnitError(f"{what}: cannot read {_shown(text)}; write a percentage such as '5%', or 0.05")
    return float(Fraction(match.group(1)) / (100 if match.group(2) else 1))


def _digits(value: object) -> str:
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() and -20 <= value.adjusted() <= 15 else ""
    if isinstance(value, int):
        return str(value) if abs(value) <= MAX_FACTOR else ""
    return repr(value) if isinstance(value, float) else ""


def scaled(amount: int, factor: Fraction) -> int:
    """An amount times a factor, rounded to whole units, half up."""
    return (2 * amount * factor.numerator + factor.denominator) // (2 * factor.denominator)


def counted(count: int, what: str) -> str:
    """Show a number of things: one stage is no ``"1 stages"``."""
    return f"{count} {what}{'' if count == 1 else 'es' if what.endswith('ch') else 's'}"


def format_ns(ns: float) -> str:
    """Show a duration with four significant digits and a unit, such as ``"18.52 ms"``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.4g} {unit}" if abs(ns) < 1e4 * size else f"{ns / size:.0f} {unit}"
    return f"{ns:.4g} ns"


def format_bytes(size: float) -> str:
    """Show a size with four significant digits and a binary unit, such as ``"1.211 GiB"``."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{size / scale:.4g} {unit}" if abs(size) < 1e4 * scale else f"{size / scale:.0f} {unit}"
    return f"{size:.0f} B"
