"""Traces for Perfetto keep to the format and say what the timetable says, to the nanosecond."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.helpers import call, call_json, error_of, put_timetable, small_timetable
from tests.interop.trace_event import ns, validated
from tests.strategies import problems, random_order
from zbsolve.errors import OrderError
from zbsolve.files import timetable_bytes
from zbsolve.interop.perfetto import perfetto_bytes, write_perfetto
from zbsolve.lowering import lower
from zbsolve.metrics import memory_curve
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.timetable import TimedOp, Timetable
from zbsolve.trace import Trace, Transfer


def slower(timetable: Timetable, by: int = 3) -> Timetable:
    """As if measured: everything takes longer."""
    rows = tuple(tuple(TimedOp(t.op, by * t.start_ns, by * t.end_ns) for t in row) for row in timetable.rows)
    return replace(timetable, rows=rows)


def trace_of(timetable: Timetable) -> Trace:
    """Two steps of a slow run, with the messages."""
    steps = [slower(timetable).rows, slower(timetable, 4).rows]
    end = [{t.op: t for row in rows for t in row} for rows in steps]
    crossing = [m for m in lower(timetable).messages if not m.local]
    transfers = tuple(
        tuple(
            Transfer(m.tail, m.head, m.sender, m.receiver, at[m.tail].end_ns, at[m.tail].end_ns, at[m.tail].end_ns + 2)
            for m in crossing
        )
        for at in end
    )
    return Trace(problem=timetable.problem, steps=tuple(steps), transfers=transfers)


@settings(max_examples=40, deadline=None)
@given(problem=problems(), seed=st.integers(0, 2**32), run=st.sampled_from(["none", "times", "trace", "bare trace"]))
def test_every_timetable_keeps_to_the_format(problem, seed, run):
    timetable = simulate(problem, random_order(problem, seed))
    trace = trace_of(timetable)
    bare = replace(trace, transfers=())
    measured = {"none": None, "times": slower(timetable), "trace": trace, "bare trace": bare}[run]
    events = validated(perfetto_bytes(timetable, measured))
    runs = 1 if measured is None else 2
    shown = sorted(
        (e["pid"], e["name"], ns(e["ts"]), ns(e["dur"])) for e in events if e["ph"] == "X" and e["cat"] != "transfer"
    )
    both = [timetable] if measured is None else [timetable, trace.timetable(-1) if "trace" in run else measured]
    assert shown == sorted(
        (1 + rank * runs + number, str(t.op), t.start_ns, t.end_ns - t.start_ns)
        for number, one in enumerate(both)
        for rank, row in enumerate(one.rows)
        for t in row
    )
    crossing = sum(not m.local for m in lower(timetable).messages)
    assert sum(e["ph"] == "s" for e in events) == crossing * runs
    assert sum(e["ph"] == "X" and e["cat"] == "transfer" for e in events) == crossing * (2 if run == "trace" else 1)
    for rank, curve in enumerate(memory_curve(timetable)):
        told = [(ns(e["ts"]), e["args"]["bytes"]) for e in events if e["ph"] == "C" and e["pid"] == 1 + rank * runs]
        assert told == list(curve)


def test_what_is_told_of_an_operation():
    timetable = small_timetable(memory_limit=2**20)
    events = validated(perfetto_bytes(timetable, slower(timetable)))
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {1: "rank 0 planned", 2: "rank 0 measured", 3: "rank 1 planned", 4: "rank 1 measured"}
    assert "limit 1 MiB" in next(e["args"]["labels"] for e in events if e["name"] == "process_labels")
    second = next(e for e in events if e["ph"] == "X" and e["pid"] == 2 and e["name"] == "F1 of stage 0")
    assert second["args"] == {
        "kind": "forward",
        "stage": 0,
        "microbatch": 1,
        "start_ns": 3000,
        "duration_ns": 3000,
        "planned_start_ns": 1000,
        "planned_duration_ns": 1000,
    }
    assert second["cat"] == "forward"


def test_no_nanosecond_is_lost():
    big = 2**55 + 1
    profile = Profile.uniform(1, forward_ns=big, backward_input_ns=1, backward_weight_ns=10)
    problem = Problem(profile=profile, placement=Placement.linear(1), microbatches=1)
    data = perfetto_bytes(simulate(problem, random_order(problem, 0, fused=0.0)))
    times = {e["name"][0]: (ns(e["ts"]), ns(e["dur"])) for e in validated(data) if e["ph"] == "X"}
    assert times == {"F": (0, big), "B": (big, 1), "W": (big + 1, 10)}
    assert b'"dur":0.001,' in data


def test_another_order_is_refused(tmp_path):
    with pytest.raises(OrderError, match="another order"):
        perfetto_bytes(small_timetable(), small_timetable(microbatches=2))
    write_perfetto(tmp_path / "x.json", small_timetable())
    assert validated((tmp_path / "x.json").read_bytes())


def test_the_verb(tmp_path):
    timetable = small_timetable()
    path, measured = put_timetable(tmp_path, timetable), tmp_path / "m.json"
    measured.write_bytes(timetable_bytes(slower(timetable)))
    out = tmp_path / "trace.json"
    assert call_json("emit", path, "--to", "perfetto", "-o", out)["files"] == [str(out)]
    alone = validated(out.read_bytes())
    call("emit", path, "--to", "perfetto", "--measured", measured, "-o", out)
    assert len(validated(out.read_bytes())) > len(alone)
    assert json.loads(call("emit", path, "--to", "perfetto").stdout)["traceEvents"]
    assert call_json("emit", path, "--to", "perfetto")["content"]["traceEvents"]
    other = put_timetable(tmp_path, small_timetable(microbatches=2), "other.json")
    assert "another order" in error_of(call("emit", path, "--to", "perfetto", "--measured", other, code=2))
    assert "--measured" in error_of(call("emit", path, "--to", "torch-csv", "--measured", measured, code=2))
    assert "overwrite" in error_of(call("emit", path, "--to", "perfetto", "--measured", other, "-o", other, code=2))
