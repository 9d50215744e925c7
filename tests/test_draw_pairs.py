"""Pairs in pictures, tables, explanations and other tools' formats."""

from __future__ import annotations

import json

import pytest

from tests.test_pairs import GOOD, op, order, problem
from zbsolve.analysis.explain import explain
from zbsolve.analysis.jitter import under_jitter
from zbsolve.catalog import baseline
from zbsolve.draw.figure import draw_timetables
from zbsolve.draw.notebook import timetable_html
from zbsolve.draw.report.payload import payload, section
from zbsolve.draw.terminal import gantt
from zbsolve.errors import ProblemError
from zbsolve.interop.node_tables import ready_for
from zbsolve.interop.perfetto import perfetto_bytes
from zbsolve.interop.tidy import tidy_rows
from zbsolve.interop.torch import merged, parse_torch_csv, torch_csv_bytes, torch_rows
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate


def small():
    asked = problem()
    return simulate(asked, order(GOOD))


def dual(microbatches: int = 8):
    where = Placement.v(2)
    profile = Profile.uniform(4, forward_ns=10, backward_input_ns=10, backward_weight_ns=10, overlap_ns=24)
    asked = Problem(
        profile=profile,
        placement=where,
        microbatches=microbatches,
        allow=frozenset({"split", "fused", "paired"}),
    )
    return simulate(asked, baseline("dualpipe-v", asked))


def test_the_terminal_shows_both_halves():
    shown = gantt(small(), width=80, colour=False)
    assert "F1" in shown
    assert "may run together" in shown
    with_pair = next(line for line in shown.splitlines() if "F1" in line)
    assert with_pair.index("F1") < with_pair.index("&0")


def test_pictures_show_both_halves(tmp_path):
    written = draw_timetables([("pairs", dual())], tmp_path / "x.svg")
    assert "<svg" in written.read_text()
    html = timetable_html(small())
    assert html.count("<title>F1 of stage 0 with BW0 of stage 1: ") == 2
    made = payload([section("pairs", small(), None)])
    letters = [kind[0] for kind in made["kinds"]]
    assert "F+BW" in letters
    assert made["tables"][0]["beside"] == {2: "BW0 of stage 1"}


def test_explanations_and_jitter_speak_of_pairs():
    told = explain(dual())
    kinds = [sum(phase.counts.values()) for phase in told.phases]
    assert sum(kinds) == 4 * 8 * 2 + sum(o.kind.value == "backward_weight" for row in dual().order.rows for o in row)
    found = under_jitter(dual(), 0.05, trials=20)
    assert any(one.op.beside is not None for one in found.stages)
    assert found.values_ns[0] > 0


def test_tables_have_a_row_for_each_half():
    rows = [row for row in tidy_rows(small()) if row[1] == 2]
    assert [(row[2], row[3], row[5], row[9]) for row in rows] == [("forward", 0, 1, 9), ("backward", 1, 0, 9)]
    events = json.loads(perfetto_bytes(small()))
    args = [e["args"] for e in events["traceEvents"] if e.get("name") == str(op("F1@0+BW0@1")) and e["ph"] == "X"]
    assert args[0]["beside"] == {"kind": "backward", "stage": 1, "microbatch": 0}


def test_tools_that_run_one_at_a_time_refuse_pairs():
    with pytest.raises(ProblemError, match="runs F1 of stage 0 together with BW0 of stage 1"):
        ready_for("Primus", small())


@pytest.mark.parametrize("csv_format", ["compute_only", "compute_comms"])
def test_torch_reads_and_writes_pairs(csv_format):
    timetable = dual()
    content, about = torch_csv_bytes(timetable, "x.csv", csv_format=csv_format)
    assert b"OVERLAP_F_B" in content
    read = parse_torch_csv(content, "x.csv", paired=True)
    assert read.order == merged(timetable)
    assert read.notes == ()
    again = read.timetable(read.problem(timetable.problem.profile))
    assert again.period_ns == timetable.period_ns == json.loads(about)["emitted_period_ns"]
    apart = parse_torch_csv(content, "x.csv")
    assert apart.order == merged(timetable).apart()
    assert "read as two" in apart.notes[0]
    slower = apart.timetable(apart.problem(timetable.problem.profile))
    assert slower.problem.allow == {"split", "fused"}


def test_torchs_own_parser_reads_our_cells():
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    for row in torch_rows(dual().order):
        for cell in row:
            assert str(schedules._Action.from_str(cell)) == cell
