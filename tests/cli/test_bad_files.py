"""Damaged files end with one message and exit code 2, never with a traceback."""

from __future__ import annotations

import copy
import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.helpers import call, error_of, put_profile, small_profile, small_timetable
from zbsolve.cli.baseline import as_solution
from zbsolve.files import profile_bytes, timetable_bytes

PROFILE = profile_bytes(small_profile())
TIMETABLE = timetable_bytes(small_timetable(memory_limit="1x"))
CLAIMED = timetable_bytes(as_solution("zb-h1", small_timetable(memory_limit="1x").problem))
"""With the record of a solver."""

STRANGE = [
    *(
        None,
        True,
        -1,
        0,
        1.5,
        10**30,
        10**400,
        2**62,
        2**63,
        "",
        "x",
        "1e9",
        "-5ms",
        "1.5x",
        "9" * 5000,
        [],
        {},
        [[]],
        [None],
    ),
    *("\x1b[31m", "[/]", "\u202e", float("nan"), float("inf"), {"a": 1}, "zbsolve.profile/1", "zbsolve.profile/99"),
]


def strange(rng: random.Random):
    """One of them, as an object of its own: what is put into a tree may be damaged next."""
    return copy.deepcopy(rng.choice(STRANGE))


def places(tree, path=()):
    """Every place in a JSON tree."""
    yield path
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def damaged(data: bytes, seed: int) -> bytes:
    """Valid bytes with one to three things wrong."""
    rng = random.Random(seed)
    if rng.random() < 0.4:
        raw = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(raw))
            match rng.randrange(4):
                case 0:
                    raw = raw[:at]
                case 1:
                    raw[at] = rng.randrange(256)
                case 2:
                    raw[at:at] = rng.choice([b"\xff", b"\x00", b"{", b"]", b'"', b"NaN", b"[" * 5000, b"\\ud800"])
                case _:
                    del raw[at : at + rng.randint(1, 40)]
            if not raw:
                break
        return bytes(raw)
    tree = json.loads(data)
    for _ in range(rng.randint(1, 2)):
        where = rng.choice(list(places(tree)))
        if not where:
            return json.dumps(strange(rng)).encode()
        parent = tree
        for key in where[:-1]:
            parent = parent[key]
        match rng.randrange(3):
            case 0:
                parent[where[-1]] = strange(rng)
            case 1:
                del parent[where[-1]]
            case _ if isinstance(parent, dict):
                parent["un\x1bknown"] = 1
            case _:
                parent.append(strange(rng))
    return json.dumps(tree).encode()


def must_end_well(line: tuple[str, ...], data: bytes) -> None:
    result = call(*line, given=data, code=None)  # never a traceback, never "this is a bug"
    assert result.exit_code in (0, 1, 2), result.output
    assert "\x1b" not in result.output
    if result.exit_code == 2:
        assert result.stdout == ""
        error_of(result)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_damaged_profiles(seed):
    must_end_well(("profile", "show", "-"), damaged(PROFILE, seed))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_damaged_profiles_in_a_baseline(seed):
    must_end_well(("baseline", "zb-1p", "-", "-m", "2", "-q"), damaged(PROFILE, seed))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.sampled_from(["check", "check --bound", "simulate", "draw", "emit --to torch-csv"]))
def test_damaged_timetables(seed, line):
    verb, *options = line.split()
    must_end_well((verb, "-", *options, "-q"), damaged(CLAIMED if seed % 2 else TIMETABLE, seed))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.sampled_from(["check", "check --bound", "simulate", "draw", "emit --to torch-csv"]))
def test_wrong_rows_and_claims(seed, line):
    rng, tree = random.Random(seed), json.loads(CLAIMED)
    for _ in range(rng.randint(1, 3)):
        row = rng.choice(tree["ranks"])
        match rng.randrange(5):
            case 0:
                rng.shuffle(row)
            case 1:
                row[rng.randrange(len(row)) :] = []
            case 2:
                row.extend(rng.choices(tree["ranks"][0], k=2))
            case 3:
                figure = rng.choice(["value_ns", "lower_bound_ns", "period_ns", "makespan_ns"])
                tree["solver"][figure] = rng.choice([0, 1, 10_000, 2**62])
            case _:
                tree["solver"].update(
                    bound=rng.choice(["chain", "relay", "head-tail", "x"]), gap=rng.choice([None, -1])
                )
        if not all(tree["ranks"]):
            break
    verb, *options = line.split()
    must_end_well((verb, "-", *options, "-q"), json.dumps(tree).encode())


@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b"{}", b"\xff\xfe", b"{" * 100_000, b"[" * 100_000, b"1" * 100_000]
)
def test_no_file_at_all(data):
    for line in (("profile", "show", "-"), ("check", "-"), ("solve", "-", "-m", "2")):
        error_of(call(*line, given=data, code=2))


def test_a_file_given_in_two_roles(tmp_path):
    path = put_profile(tmp_path)
    assert "standard input" in error_of(call("compare", "-", "-", code=2))
    assert "standard input" in error_of(call("solve", "-", "-m", "2", "--start", "-", given=PROFILE, code=2))
    assert "a profile" in error_of(call("solve", path, "-m", "2", "--start", path, "-q", code=2))
