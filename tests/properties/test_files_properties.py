"""Any profile or timetable survives its file; any damaged file is read or refused with one error."""

from __future__ import annotations

import copy
import json
import random
import tempfile
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import problems, random_order, stage_costs
from zbsolve.errors import FileFormatError, InvalidInput
from zbsolve.files import (
    profile_bytes,
    read_profile,
    read_profile_bytes,
    read_record_bytes,
    read_timetable_bytes,
    schema,
    timetable_bytes,
    write_profile,
)
from zbsolve.metrics import metrics
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, LinkOverride, Profile, ProfileSource, StageCost, StageSpread
from zbsolve.simulate import simulate
from zbsolve.solution import Solution
from zbsolve.timetable import Timetable

AMOUNT = st.one_of(st.integers(0, 50), st.integers(0, 2**62))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Profiles that use every field, with any text in it."""

    def stage(cost: StageCost, name: str, optimizer_ns: int, static: int) -> StageCost:
        values = {field: getattr(cost, field) for field in StageCost.__slots__}
        return StageCost(**values | {"name": name, "optimizer_ns": optimizer_ns, "static_bytes": static})

    stages = draw(st.lists(st.builds(stage, stage_costs(), TEXT, AMOUNT, AMOUNT), min_size=1, max_size=4))
    pairs = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), unique=True, max_size=3))
    bandwidth = st.one_of(st.none(), st.integers(1, 2**62))
    overrides = tuple(
        LinkOverride(sender=a, receiver=b, latency_ns=draw(AMOUNT), bytes_per_second=draw(bandwidth))
        for a, b in pairs
        if a != b
    )
    spread = st.builds(StageSpread, forward_ns=AMOUNT, backward_ns=AMOUNT)
    source = ProfileSource(
        host=draw(TEXT),
        device=draw(TEXT),
        split=draw(TEXT),
        versions=tuple(draw(st.dictionaries(TEXT, TEXT, max_size=3)).items()),
        samples=draw(AMOUNT),
        spread=tuple(draw(spread) for _ in stages) if draw(st.booleans()) else (),
        note=draw(TEXT),
    )
    link = Link(latency_ns=draw(AMOUNT), bytes_per_second=draw(bandwidth), overrides=overrides)
    return Profile(stages=tuple(stages), link=link, name=draw(TEXT), source=source)


def timetables() -> st.SearchStrategy[Timetable]:
    def timed(problem: Problem, seed: int) -> Timetable:
        return simulate(problem, random_order(problem, seed))

    return st.builds(timed, problems(limits=True, most_microbatches=3, variants=True), st.integers(0, 2**32))


@settings(max_examples=100, deadline=None)
@given(profiles())
def test_profiles_survive_json_and_toml(profile):
    data = profile_bytes(profile)
    assert read_profile_bytes(data, "p.json") == profile
    assert profile_bytes(read_profile_bytes(data, "p.json")) == data
    jsonschema.Draft202012Validator(schema("profile")).validate(json.loads(data))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.toml"
        write_profile(path, profile)
        assert read_profile(path) == profile


@settings(max_examples=100, deadline=None)
@given(timetables())
def test_timetables_survive(timetable):
    data = timetable_bytes(timetable)
    again = read_timetable_bytes(data, "t")
    assert again == timetable
    assert again.problem.digest == timetable.problem.digest
    assert again.problem.limit_bytes == timetable.problem.limit_bytes
    assert timetable_bytes(again) == data
    jsonschema.Draft202012Validator(schema("timetable")).validate(json.loads(data))


# -- damage


def seed_files() -> tuple[bytes, bytes]:
    cost = StageCost(forward_ns=10, backward_input_ns=9, backward_weight_ns=8, activation_bytes=5, name="a")
    profile = Profile(
        stages=(cost, cost),
        link=Link(latency_ns=2, overrides=(LinkOverride(sender=0, receiver=1, bytes_per_second=7),)),
        source=ProfileSource(host="h", versions=(("torch", "2"),), spread=(StageSpread(), StageSpread())),
    )
    problem = Problem(profile=profile, placement=Placement.linear(2), microbatches=2, memory_limit=("2x", "1MiB"))
    timetable = simulate(problem, random_order(problem, 0))
    figures = metrics(timetable)
    solution = Solution(
        timetable=timetable,
        metrics=figures,
        status="optimal",
        value_ns=figures.period_ns,
        lower_bound_ns=figures.period_ns,
        bound="load",
        gap=0.0,
        seconds=0.5,
        seed=0,
        method="list",
        digest=problem.digest,
    )
    return profile_bytes(profile), timetable_bytes(solution)


PROFILE, TIMETABLE = seed_files()

ODD = [
    *(None, True, False, 0, -1, 1, 2, 2**31, 2**62, 2**62 + 1, 2**63, 2**64, -(10**400), 10**400, 1.0, 0.5, 1e308),
    *(float("nan"), float("inf"), "", "x", "1x", "0x", "1.5ms", "3MiB", "999999999999x", "-1", "1e5", "\x00", "\u202e"),
    *("a" * 300, "\ud800", [], {}, [[]], [{}], {"a": 1}, [0, 1], [0] * 50, "period", "split", "forward", "linear"),
]


def damaged_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flip, cut, drop, repeat or insert bytes."""
    made = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(made) + 1)
        until = min(len(made), at + rng.choice([1, 2, 10, 200]))
        match rng.randrange(5):
            case 0 if at < len(made):
                made[at] ^= 1 << rng.randrange(8)
            case 1:
                del made[at:]
            case 2:
                del made[at:until]
            case 3:
                made[at:at] = made[at:until]
            case _:
                made[at:at] = rng.choice(
                    [b"\x00", b"\xff", b'"', b"{", b"}", b"[", b"]", b",", b"-", b"9", b"\xef\xbb\xbf"]
                )
    return bytes(made)


def places(tree: object) -> list[tuple[object, object]]:
    """Every (container, key) of a tree."""
    found: list[tuple[object, object]] = []
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        found.append((tree, key))
        if isinstance(value, dict | list):
            found += places(value)
    return found


def damaged_tree(rng: random.Random, data: bytes) -> bytes:
    """Replace, delete, insert, repeat or swap values anywhere."""
    tree = json.loads(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        around = places(tree)
        if not around:
            break
        (inside, key), (other, there) = rng.choice(around), rng.choice(around)
        match rng.randrange(6):
            case 0 | 1:
                inside[key] = copy.deepcopy(rng.choice(ODD))
            case 2:
                del inside[key]
            case 3 if isinstance(inside, dict):
                inside[rng.choice(["zzz", "format", "name", "stages", "link", "", "\x1b[2J"])] = copy.deepcopy(
                    rng.choice(ODD)
                )
            case 3:
                inside.insert(key, copy.deepcopy(rng.choice(ODD)))
            case 4 if isinstance(inside, list):
                inside.insert(key, copy.deepcopy(inside[key]))
            case _:
                inside[key] = copy.deepcopy(other[there])
    return json.dumps(tree).encode()


def given_twice(rng: random.Random, data: bytes) -> bytes:
    """Repeat a field of some object."""
    lines = data.decode().splitlines()
    at = rng.choice([i for i, line in enumerate(lines) if line.strip().startswith('"') and line.endswith(",")])
    return "\n".join([*lines[:at], lines[at], *lines[at:]]).encode()


def assert_clear(refused: InvalidInput, start: str) -> None:
    assert isinstance(refused, FileFormatError)
    assert str(refused).startswith(start)
    assert str(refused).isprintable()
    assert len(str(refused)) < 1000


@pytest.mark.parametrize("kind", ["profile", "timetable"])
@settings(max_examples=600, deadline=None)
@given(seed=st.integers(0, 2**32), damage=st.sampled_from([damaged_bytes, damaged_tree]))
def test_a_damaged_file_is_read_or_refused_with_one_error(kind, seed, damage):
    data = damage(random.Random(seed), PROFILE if kind == "profile" else TIMETABLE)
    try:
        if kind == "profile":
            profile = read_profile_bytes(data, "it")
            assert read_profile_bytes(profile_bytes(profile), "it") == profile
        else:
            timetable = read_timetable_bytes(data, "it")
            read_record_bytes(data, "it")
            assert read_timetable_bytes(timetable_bytes(timetable), "it") == timetable
    except InvalidInput as error:
        assert_clear(error, "it: ")


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_field_given_twice_is_refused(seed):
    for data, read in ((PROFILE, read_profile_bytes), (TIMETABLE, read_timetable_bytes)):
        with pytest.raises(FileFormatError):
            read(given_twice(random.Random(seed), data), "it")


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_damaged_toml_is_read_or_refused_with_one_error(seed):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.toml"
        write_profile(path, read_profile_bytes(PROFILE, "p"))
        data = damaged_bytes(random.Random(seed), path.read_bytes())
    try:
        read_profile_bytes(data, "it.toml")
    except InvalidInput as error:
        assert_clear(error, "it.toml: ")
