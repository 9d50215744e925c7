"""Profiles and timetables as files: what stands in them, and what is refused with which words."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from zbsolve.check import violations
from zbsolve.errors import FileFormatError, InvalidInput, ProfileError
from zbsolve.files import (
    SolverRecord,
    profile_bytes,
    read_profile,
    read_profile_bytes,
    read_record_bytes,
    read_solution_record,
    read_timetable,
    read_timetable_bytes,
    schema,
    timetable_bytes,
    write_profile,
    write_timetable,
)
from zbsolve.metrics import metrics
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, LinkOverride, Profile, ProfileSource, StageCost, StageSpread
from zbsolve.simulate import simulate
from zbsolve.solution import Solution
from zbsolve.timetable import Order, Timetable

GOLDEN = Path(__file__).parent / "golden"


def example_profile() -> Profile:
    stages = (
        StageCost(
            forward_ns=1000,
            backward_input_ns=1100,
            backward_weight_ns=900,
            activation_bytes=2048,
            backward_weight_bytes=1024,
            static_bytes=10_000,
            output_bytes=512,
            name="embedding",
        ),
        StageCost(
            forward_ns=1200,
            backward_input_ns=1000,
            backward_weight_ns=800,
            backward_ns=1700,
            activation_bytes=1024,
            backward_weight_bytes=1024,
            workspace_bytes=64,
            optimizer_ns=7,
            grad_reduce_ns=5,
        ),
    )
    return Profile(
        stages=stages,
        link=Link(
            latency_ns=50,
            bytes_per_second=10**9,
            overrides=(LinkOverride(sender=1, receiver=0, latency_ns=80),),
        ),
        name="zwei Stufen, größer",
        source=ProfileSource(
            host="lab-1",
            device="CPU",
            split="torch",
            versions=(("torch", "2.13.0"), ("python", "3.12")),
            samples=30,
            spread=(StageSpread(forward_ns=12), StageSpread(backward_ns=3)),
            note='quotes " and\nlines',
        ),
    )


def example_timetable() -> Timetable:
    problem = Problem(
        profile=example_profile(), placement=Placement.linear(2), microbatches=2, memory_limit=("2x", "1MiB")
    )
    f, b, w, bw = Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.BACKWARD
    first = [Op(f, 0, 0), Op(f, 0, 1), Op(b, 0, 0), Op(b, 0, 1), Op(w, 0, 0), Op(w, 0, 1)]
    second = [Op(f, 1, 0), Op(bw, 1, 0), Op(f, 1, 1), Op(bw, 1, 1)]
    second += [Op(Kind.REDUCE_GRADIENT, 1, None), Op(Kind.OPTIMIZER, 1, None)]
    return simulate(problem, Order((tuple(first), tuple(second))))


def example_solution() -> Solution:
    timetable = example_timetable()
    figures = metrics(timetable)
    return Solution(
        timetable=timetable,
        metrics=figures,
        status="feasible",
        value_ns=figures.period_ns,
        lower_bound_ns=6000,
        bound="load",
        gap=figures.period_ns / 6000 - 1,
        seconds=0.123456,
        seed=7,
        method="list",
        digest=timetable.problem.digest,
    )


def smallest(**stage: object) -> dict[str, object]:
    cost = {"forward_ns": 3, "backward_input_ns": 2, "backward_weight_ns": 1} | stage
    return {"format": "zbsolve.profile/1", "stages": [cost]}


def refusal(content: object, *, timetable: bool = False) -> FileFormatError:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(FileFormatError) as caught:
        (read_timetable_bytes if timetable else read_profile_bytes)(data, "it.json")
    assert str(caught.value).startswith("it.json: ")
    assert str(caught.value).isprintable()
    return caught.value


def plain_timetable() -> dict[str, object]:
    return json.loads(timetable_bytes(example_solution()))


# -- what stands in the files


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("profile.json", lambda: profile_bytes(example_profile())),
        ("timetable.json", lambda: timetable_bytes(example_timetable())),
        ("solution.json", lambda: timetable_bytes(example_solution())),
    ],
)
def test_the_bytes_of_a_file_are_golden(name, made):
    assert made() == (GOLDEN / name).read_bytes()


def test_the_toml_of_a_profile_is_golden(tmp_path):
    write_profile(tmp_path / "p.toml", example_profile())
    assert (tmp_path / "p.toml").read_bytes() == (GOLDEN / "profile.toml").read_bytes()


def test_the_golden_files_are_read():
    assert read_profile(GOLDEN / "profile.json") == example_profile()
    assert read_profile(GOLDEN / "profile.toml") == example_profile()
    assert read_timetable(GOLDEN / "timetable.json") == example_timetable()
    assert read_timetable(GOLDEN / "solution.json") == example_timetable()
    assert read_solution_record(GOLDEN / "timetable.json") is None
    assert read_solution_record(GOLDEN / "solution.json") == SolverRecord.of(example_solution())


def test_files_of_the_first_release_say_what_they_said_then():
    """Their iterations end with the last backward, whatever the profile says of optimizers."""
    old = read_timetable(GOLDEN / "first" / "timetable.json")
    assert read_timetable(GOLDEN / "first" / "solution.json") == old
    assert old.problem == dataclasses.replace(example_timetable().problem, ends=False)
    assert violations(old.problem, old, claimed_ns=old.period_ns) == ()
    record = read_solution_record(GOLDEN / "first" / "solution.json")
    assert record.digest == old.problem.digest != example_timetable().problem.digest
    assert record.period_ns == old.period_ns
    assert read_timetable_bytes(timetable_bytes(old), "t.json") == old


def test_only_the_wall_time_differs_between_runs():
    slow = dataclasses.replace(example_solution(), seconds=99.0)
    lines = zip(timetable_bytes(example_solution()).splitlines(), timetable_bytes(slow).splitlines(), strict=True)
    assert [(a, b) for a, b in lines if a != b] == [(b'    "seconds": 0.123', b'    "seconds": 99.0')]


def test_an_operation_a_line():
    lines = timetable_bytes(example_timetable()).decode().splitlines()
    assert '      ["forward", 0, 0, 0, 1000],' in lines
    assert sum(line.strip().startswith('["') for line in lines) == 12


def test_the_smallest_profile():
    stage = {"forward_ns": 1000, "backward_input_ns": 1000, "backward_weight_ns": 1000}
    profile = read_profile_bytes(json.dumps({"format": "zbsolve.profile/1", "stages": [stage]}).encode(), "p")
    assert profile == Profile.uniform(1, forward_ns=1000, backward_input_ns=1000, backward_weight_ns=1000)
    assert json.loads(profile_bytes(profile)) == {"format": "zbsolve.profile/1", "stages": [stage]}


def test_units():
    content = smallest(forward_ns="18.5ms", backward_input_ns="3 us", activation_bytes="1240MiB", static_bytes="1.5 GB")
    content["link"] = {"latency_ns": "10us", "bytes_per_second": "25GB"}
    profile = read_profile_bytes(json.dumps(content).encode(), "p")
    stage = profile.stages[0]
    assert (stage.forward_ns, stage.backward_input_ns) == (18_500_000, 3000)
    assert (stage.activation_bytes, stage.static_bytes) == (1240 * 2**20, 1_500_000_000)
    assert profile.link == Link(latency_ns=10_000, bytes_per_second=25 * 10**9)


def test_what_is_written_is_read(tmp_path):
    for name in ("p.json", "p.toml", "P.TOML", "p"):
        write_profile(tmp_path / name, example_profile())
        assert read_profile(tmp_path / name) == example_profile()
    write_timetable(tmp_path / "t.json", example_solution())
    assert read_timetable(tmp_path / "t.json") == example_timetable()
    assert read_solution_record(str(tmp_path / "t.json")) == SolverRecord.of(example_solution())


def test_two_routes_and_their_microbatches():
    problem = Problem(
        profile=Profile.uniform(2, forward_ns=1, backward_input_ns=1, backward_weight_ns=1),
        placement=Placement.bidirectional(2),
        microbatches=3,
        route_of=(1, 1, 0),
        objective="makespan",
        allow=frozenset({"fused"}),
        memory_limit=10**12,
    )
    timetable = Timetable(problem=problem, rows=((), ()))
    assert read_timetable_bytes(timetable_bytes(timetable), "t") == timetable


def test_no_bound_at_all_is_an_infinite_gap():
    solution = dataclasses.replace(example_solution(), lower_bound_ns=0, gap=math.inf)
    record = read_record_bytes(timetable_bytes(solution), "t")
    assert record is not None
    assert record.gap == math.inf


def test_a_name_that_is_no_text_cannot_be_written():
    with pytest.raises(ProfileError, match="half a surrogate pair"):
        profile_bytes(dataclasses.replace(example_profile(), name="\ud800"))


def test_reading_and_emitting_load_nothing_heavy():
    code = (
        "import sys, zbsolve.interop.torch; from zbsolve.files import read_timetable; read_timetable(sys.argv[1]);"
        "print([m for m in ('torch', 'ortools', 'matplotlib', 'networkx', 'click', 'rich') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(GOLDEN / "timetable.json")],
        cwd=Path(__file__).parents[1],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[]\n"


# -- what is refused


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"{", "is not JSON: expecting property name enclosed in double quotes in line 1, column 2; the file seems"),
        (profile_bytes(example_profile())[:300], "the file seems cut off"),
        (profile_bytes(example_profile()) + b"{}", "is not JSON: extra data"),
        (b"\xff\xfe{\x00", "is not UTF-8 text: byte 0 cannot be read"),
        (b"\xef\xbb\xbf" + profile_bytes(example_profile()), "begins with a byte order mark"),
        (b"\x00" * 100, "is not JSON"),
        (b"[" * 100_000, "is nested too deeply"),
        (b'{"format":' * 100_000, "is nested too deeply"),
        (b'{"format": "zbsolve.profile/1", "stages": ' + b"[" * 900 + b"]" * 900 + b"}", "$.stages[0]"),
        (b'{"format": ' + b"9" * 5000 + b"}", "at $.format: expected 'zbsolve.profile/1'"),
        (b'{"format": "zbsolve.profile/1", "name": "\\ud800", "stages": []}', "at $.name: contains half a surrogate"),
        (b'{"format": "a", "format": "a"}', "at $: the field 'format' is given twice; keep one"),
        (b'{"link": {"a": [{"b": 1}, {"b": 1, "c": 2, "b": 3}]}}', "at $.link.a[1]: the field 'b' is given twice"),
    ],
)
def test_bytes_that_are_no_profile(data, message):
    assert message in str(refusal(data))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (7, "at $: is not a profile: it must be an object with the field 'format'"),
        ({}, "at $: lacks the field 'format'; a profile says 'zbsolve.profile/1' there"),
        ({"format": 1}, "at $.format: expected 'zbsolve.profile/1'"),
        ({"format": "zbsolve.profile/2"}, "at $.format: is version 2; this zbsolve reads version 1"),
        ({"format": "zbsolve.timetable/1"}, "at $.format: is a timetable, but a profile is needed here"),
        ({"format": "zbsolve.trace/1"}, "at $.format: is a file of the kind 'trace', but a profile is needed here"),
        ({"format": "\x1b[31m"}, "at $.format: '\\x1b[31m' is no format of zbsolve"),
        ({"format": "zbsolve.profile/1"}, "at $: the field 'stages' is missing"),
        ({"format": "zbsolve.profile/1", "stages": []}, "at $.stages: expected a list of at least 1"),
        ({"format": "zbsolve.profile/1", "stages": {}}, "at $.stages: expected a list, got an object"),
        ({"format": "zbsolve.profile/1", "stages": [7]}, "at $.stages[0]: expected an object, got a whole number"),
        ({"format": "zbsolve.profile/1", "stages": [{}]}, "at $.stages[0]: the field 'forward_ns' is missing"),
        (smallest(forwards_ns=1), "at $.stages[0].forwards_ns: unknown field; did you mean 'forward_ns'?"),
        (smallest() | {"zzz": 1}, "at $.zzz: unknown field; remove it"),
        (smallest() | {"a`\x1b\n": 1}, "at $.a`\\x1b\\n: unknown field; remove it"),
        (smallest(forward_ns=-5), "at $.stages[0].forward_ns: forward_ns must not be negative, got -5"),
        (smallest(backward_ns=-1), "at $.stages[0].backward_ns: backward_ns must not be negative"),
        (smallest(forward_ns=None), "at $.stages[0].forward_ns: expected a whole number or text, got null"),
        (smallest(latency_ns=1), "at $.stages[0].latency_ns: unknown field; it belongs in $.link or $.host_link"),
        (smallest() | {"slices": 2}, "at $.slices: unknown field; it belongs in $.problem of a timetable"),
        (
            smallest() | {"forward_ns": 1},
            "at $.forward_ns: unknown field; it belongs in $.stages[] or $.source.spread[]",
        ),
        (smallest() | {"link": {"overide": []}}, "at $.link.overide: unknown field; did you mean 'overrides'?"),
        (smallest(forward_ns=1.5), "at $.stages[0].forward_ns: expected a whole number or text, got a number"),
        (smallest(forward_ns=1e308), "at $.stages[0].forward_ns: expected a whole number or text, got a number"),
        (smallest(forward_ns=math.nan), "at $.stages[0].forward_ns: expected a whole number or text, got a number"),
        (smallest(forward_ns=-math.inf), "at $.stages[0].forward_ns: expected a whole number or text"),
        (smallest(forward_ns=True), "at $.stages[0].forward_ns: expected a whole number or text, got true or false"),
        (smallest(forward_ns=10**400), "forward_ns must be at most 2^62, got a number of more than 30 digits"),
        (smallest(forward_ns=2**62 + 1), "at $.stages[0].forward_ns: forward_ns must be at most 2^62"),
        (smallest(forward_ns="12 parsecs"), "at $.stages[0].forward_ns: forward_ns: cannot read '12 parsecs'; write"),
        (smallest(forward_ns="1.5ns"), "is not a whole number of ns"),
        (smallest(activation_bytes="3ms"), "at $.stages[0].activation_bytes: activation_bytes: cannot read '3ms'"),
        (smallest(name="x" * 201), "at $.stages[0].name: expected text of at most 200 characters"),
        (smallest(name=5), "at $.stages[0].name: expected text, got a whole number"),
        (smallest(forward_ns=0, backward_input_ns=0, backward_weight_ns=0), "at $: the stages take no time at all"),
        (
            {"format": "zbsolve.profile/1", "stages": smallest()["stages"] * 4097},
            "at $.stages: expected a list of at most 4096",
        ),
        (smallest() | {"link": {"bytes_per_second": 0}}, "at $.link: link: bytes_per_second must be positive"),
        (smallest() | {"link": {"overrides": [{"sender": 1, "receiver": 1}]}}, "at $.link.overrides[0]: a link joins"),
        (
            smallest() | {"link": {"overrides": [{"sender": 0, "receiver": 1}] * 2}},
            "at $.link: the link from rank 0 to rank 1 is given twice",
        ),
        (smallest() | {"source": {"versions": {"torch": 2}}}, "at $.source.versions[...]: expected text, got a whole"),
        (smallest() | {"source": {"samples": -1}}, "at $.source: source: samples must not be negative"),
        (smallest() | {"source": {"spread": [{}, {}]}}, "at $: the source gives the spread of 2 stages"),
        (smallest() | {"source": {"spread": [{"forward_ns": "x"}]}}, "at $.source.spread[0].forward_ns: forward_ns"),
    ],
)
def test_objects_that_are_no_profile(content, message):
    error = refusal(content)
    assert message in str(error)
    assert error.where is not None
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format = ", "is not TOML: "),
        ("format = 'a'\nformat = 'a'", "is not TOML: "),
        ('format = "zbsolve.profile/1"\nstages = 1979-05-27', "at $.stages: expected a list"),
        ('format = "zbsolve.profile/1"\n[[stages]]\nforward_ns = nan', "at $.stages[0].forward_ns: expected a whole"),
        ('format = "zbsolve.profile/1"\nstages = ' + "[" * 100_000, "p.toml: is n"),
        (
            f'format = "zbsolve.profile/1"\nstages = {"9" * 5000}',
            "p.toml: has a number of thousands of digits in line 2",
        ),
    ],
)
def test_toml_that_is_no_profile(text, message):
    with pytest.raises(FileFormatError) as caught:
        read_profile_bytes(text.encode(), "p.toml")
    assert message in str(caught.value)


def test_null_is_as_good_as_not_given():
    optional = ("backward_ns", "recompute_ns", "checkpoint_bytes", "offload_bytes")
    overlap = {"forward_stage": 0, "backward_stage": 0, "forward_backward_overlap_ns": 9}
    given = smallest() | {"overlaps": [overlap], "link": {"latency_ns": 1}}
    nulls = smallest(**dict.fromkeys(optional)) | {
        "overlaps": [overlap | {"forward_backward_input_overlap_ns": None}],
        "link": {"latency_ns": 1, "queueing": None, "bytes_per_second": None},
        "host_link": None,
    }
    expected, found = (read_profile_bytes(json.dumps(content).encode(), "p.json") for content in (given, nulls))
    assert found == expected
    jsonschema.validate(nulls, schema("profile"))


def test_null_is_as_good_as_not_given_in_a_timetable():
    content = json.loads(timetable_bytes(example_solution()))
    content["problem"] |= dict.fromkeys(("route_of", "rank_factors", "microbatch_factors", "ends"))
    content["problem"]["placement"]["name"] = content["solver"]["lost"] = None
    jsonschema.validate(content, schema("timetable"))
    found = read_timetable_bytes(json.dumps(content).encode(), "t.json")
    assert found == read_timetable_bytes(timetable_bytes(example_solution()), "t.json")


DELETE = object()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["problem"], DELETE, "at $: the field 'problem' is missing"),
        (["ranks"], DELETE, "at $: the field 'ranks' is missing"),
        (["ranks"], [[]], "at $.ranks: the placement has 2 ranks, but there are 1 rows"),
        (["ranks", 1, 3], ["forward", 1, 0, 5], "at $.ranks[1][3]: expected a list of at least 5 elements, got 4"),
        (["ranks", 1, 3, 0], "fwd", "at $.ranks[1][3][0]: 'fwd' is not one of the words allowed here"),
        (["ranks", 1, 3, 1], 2, "at $.ranks[1][3][1]: the problem has 2 stages, numbered from 0; got 2"),
        (["ranks", 1, 3, 2], 2, "at $.ranks[1][3][2]: the problem has 2 microbatches, numbered from 0; got 2"),
        (["ranks", 1, 3, 2], None, "at $.ranks[1][3][2]: expected a whole number, got null"),
        (["ranks", 1, 3, 3], -1, "at $.ranks[1][3][3]: expected a whole number at least 0"),
        (["ranks", 1, 3, 4], 10**400, "at $.ranks[1][3][4]: "),
        (["ranks", 1, 3, 4], 2.0, "at $.ranks[1][3][4]: expected a whole number, got a number"),
        (["problem", "profile", "stages", 1, "forward_ns"], "x", "at $.problem.profile.stages[1].forward_ns: "),
        (
            ["problem", "profile", "format"],
            "zbsolve.profile/1",
            "at $.problem.profile.format: unknown field; it belongs in $",
        ),
        (["slices"], 2, "at $.slices: unknown field; it belongs in $.problem"),
        (["problem", "slice"], 2, "at $.problem.slice: unknown field; did you mean 'slices'?"),
        (["problem", "placement", "routes"], [], "at $.problem.placement.routes: a placement needs a route"),
        (["problem", "placement", "routes"], [[0, 2]], "at $.problem.placement.routes: rank 1 holds no stage"),
        (["problem", "placement", "routes"], [[0, 1], [0]], "routes must cover the same stages"),
        (["problem", "placement", "routes"], [[0, 10**400]], "a rank must be at most 2^62"),
        (["problem", "placement", "name"], "v", "at $.problem.placement.name: these routes are called 'linear'"),
        (["problem", "placement", "name"], "zigzag", "is not one of the words allowed here"),
        (["problem", "microbatches"], 0, "at $.problem: an iteration needs at least one microbatch"),
        (["problem", "microbatches"], 10**9, "at $.problem: 2 stages x 1000000000 microbatches is too large"),
        (["problem", "memory_limit"], "lots", "at $.problem.memory_limit: the memory limit of rank 0: cannot read"),
        (["problem", "memory_limit"], [1, 2, 3], "one a rank, 2 in all; got 3"),
        (["problem", "memory_limit"], -1, "at $.problem.memory_limit: the memory limit of rank 0 must not be negative"),
        (["problem", "objective"], "speed", "at $.problem.objective: 'speed' is not one of the words"),
        (["problem", "allow"], [], "at $.problem: allow is a set of"),
        (["problem", "route_of"], [0, 1], "at $.problem: route_of needs one route below 1"),
        (["problem", "route_of"], [0], "at $.problem: route_of needs one route below 1"),
        (["solver", "status"], "great", "at $.solver.status: 'great' is not one of the words"),
        (["solver", "gap"], math.nan, "at $.solver.gap: must be a finite number"),
        (["solver", "seconds"], math.inf, "at $.solver.seconds: must be a finite number"),
        (["solver", "bubble"], None, "at $.solver.bubble: expected a number, got null"),
        (["solver", "seed"], 10**400, "at $.solver.seed: must lie within"),
        (["solver", "peak_bytes"], [1], "at $.solver.peak_bytes: needs one entry a rank, 2 in all"),
        (["solver", "digest"], DELETE, "at $.solver: the field 'digest' is missing"),
        (["format"], "zbsolve.profile/1", "at $.format: is a profile, but a timetable is needed here"),
    ],
)
def test_objects_that_are_no_timetable(path, value, message):
    content = plain_timetable()
    at = content
    for step in path[:-1]:
        at = at[step]
    if value is DELETE:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    assert message in str(refusal(content, timetable=True))


def test_what_only_the_judge_may_refuse_is_read():
    content = plain_timetable()
    content["ranks"][0] = [["backward", 1, 1, 9, 3], ["backward", 1, 1, 0, 0]]
    timetable = read_timetable_bytes(json.dumps(content).encode(), "t")
    assert timetable.rows[0][0].op == Op(Kind.BACKWARD, 1, 1)
    assert (timetable.rows[0][0].start_ns, timetable.rows[0][0].end_ns) == (9, 3)


def test_files_that_cannot_be_read(tmp_path):
    for read in (read_profile, read_timetable, read_solution_record):
        with pytest.raises(FileFormatError, match="is a directory"):
            read(tmp_path)
        with pytest.raises(FileFormatError, match="there is no such file"):
            read(tmp_path / "none.json")


# -- the schemas


def valid(kind: str, content: object) -> bool:
    return jsonschema.Draft202012Validator(schema(kind)).is_valid(content)


@pytest.mark.parametrize("kind", ["profile", "timetable"])
def test_schemas_are_schemas(kind):
    jsonschema.Draft202012Validator.check_schema(schema(kind))
    assert json.loads(json.dumps(schema(kind))) == schema(kind)


def test_schemas_accept_what_is_written():
    assert valid("profile", json.loads((GOLDEN / "profile.json").read_bytes()))
    assert valid("profile", smallest(forward_ns="18.5 ms", activation_bytes="2MiB"))
    assert valid("timetable", json.loads((GOLDEN / "timetable.json").read_bytes()))
    assert valid("timetable", json.loads((GOLDEN / "solution.json").read_bytes()))


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"format": "zbsolve.profile/1", "stages": []},
        smallest(zzz=1),
        smallest(forward_ns=-1),
        smallest(forward_ns=2**62 + 1),
        smallest(forward_ns="1 parsec"),
        smallest(activation_bytes="1ms"),
        smallest(name=1),
        smallest() | {"format": "zbsolve.profile/2"},
        smallest() | {"link": {"latency": 1}},
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(content):
    assert not valid("profile", content)
    refusal(content)


def test_the_schema_of_timetables_refuses():
    for change in ({"ranks": 1}, {"ranks": [[["fwd", 0, 0, 0, 1]]]}, {"solver": {}}, {"zzz": 1}, {"problem": {}}):
        content = plain_timetable() | change
        assert not valid("timetable", content)
        refusal(content, timetable=True)


def test_an_unknown_schema():
    with pytest.raises(InvalidInput, match="there is no schema of 'trace'; there are those of profile, timetable"):
        schema("trace")
