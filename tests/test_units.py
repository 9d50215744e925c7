from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbsolve.errors import UnitError
from zbsolve.units import MAX_AMOUNT, format_bytes, format_ns, parse_bytes, parse_ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [("18.5ms", 18_500_000), ("18522 us", 18_522_000), ("3µs", 3000), ("1.000000001s", 10**9 + 1), ("7", 7), (7, 7)],
)
def test_durations_are_read_exactly(text, ns):
    assert parse_ns(text) == ns


@pytest.mark.parametrize(
    ("text", "size"),
    [("72GiB", 72 * 2**30), ("72GB", 72 * 10**9), ("0.5KiB", 512), ("12 B", 12), ("1.5KB", 1500), (0, 0)],
)
def test_sizes_are_read_exactly(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "ms",
        "-1ms",
        "1e3",
        "nan",
        "inf",
        "1.5",
        "0.3B",
        "1 parsec",
        "٣ms",
        True,
        1.5,
        None,
        -1,
        MAX_AMOUNT + 1,
        "9" * 29,
    ],
)
def test_what_cannot_be_read_is_refused(bad):
    with pytest.raises(UnitError) as caught:
        parse_bytes(bad, "the limit")
    assert "the limit" in str(caught.value)
    assert len(str(caught.value)) < 250


@given(st.integers(0, MAX_AMOUNT))
def test_whole_numbers_pass_unchanged(amount):
    assert parse_ns(amount) == amount
    assert parse_bytes(str(amount)) == amount


@given(st.integers(0, 10**15))
def test_shown_amounts_are_within_a_thousandth(amount):
    for shown, parse in ((format_ns(amount), parse_ns), (format_bytes(amount), parse_bytes)):
        number, unit = shown.split()
        back = float(number) * parse(f"1{unit}")
        assert back == pytest.approx(amount, rel=1e-3, abs=0.5)
