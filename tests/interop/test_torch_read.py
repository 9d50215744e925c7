"""torch's CSVs as timetables: its own schedules pass the check, and what it lets pass is told with row and cell."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.helpers import call, call_json, error_of, put_profile
from tests.interop.torch_side import IR_SCHEDULES, torchs_own
from zbsolve.check import violations
from zbsolve.errors import FileFormatError
from zbsolve.interop.torch import parse_torch_csv, read_torch_csv, torch_rows
from zbsolve.interop.torch.cells import cells_of
from zbsolve.profile import Profile


def costs(stages: int) -> Profile:
    return Profile.uniform(
        stages, forward_ns=1000, backward_input_ns=1000, backward_weight_ns=900, backward_ns=1800, latency_ns=7
    )


@pytest.mark.parametrize("csv_format", ["compute_only", "compute_comms"])
@pytest.mark.parametrize("name", IR_SCHEDULES)
def test_torchs_own_schedules_pass_the_check(tmp_path, name, csv_format):
    for ranks, microbatches in ((2, 4), (4, 8), (4, 12)):
        path = tmp_path / "x.csv"
        schedule = torchs_own(name, ranks, microbatches)
        schedule._dump_csv(str(path), format=csv_format)
        found = parse_torch_csv(path.read_bytes(), path)
        assert (found.layout, found.microbatches) == (csv_format, microbatches)
        assert found.placement.routes[0] == tuple(schedule.stage_index_to_group_rank[s] for s in range(2 * ranks))
        timetable = read_torch_csv(path, costs(2 * ranks))
        assert violations(timetable.problem, timetable) == ()
        written = [
            [str(part) for action in row if action is not None for part in action.sub_actions or (action,)]
            for _, row in sorted(schedule.pipeline_order.items())
        ]
        assert torch_rows(timetable.order) == written
        assert bool(found.notes) == (name == "DualPipeV" and "_F_B" in path.read_text())


@pytest.mark.parametrize("name", IR_SCHEDULES)
def test_receives_that_torch_has_deferred(tmp_path, name):
    """With a V, neighbours exchange both outputs and gradients in one direction, and deferring mixes them up."""
    path = tmp_path / "x.csv"
    torchs_own(name, 4, 8, defer_pp_recv=True)._dump_csv(str(path))
    if name in ("ZBVZeroBubble", "DualPipeV"):
        with pytest.raises(FileFormatError, match=r"RECV_B\d would take what \dSEND_F\d sends"):
            read_torch_csv(path, costs(8))
        return
    timetable = read_torch_csv(path, costs(8))
    assert violations(timetable.problem, timetable) == ()


@pytest.mark.parametrize(
    "text", ["0F0abc", "0F", "F0", "0X0", "0UNSHARD0", "-1F0", "0F-1", "0F٣", "(0F0;1F0)OVERLAP_F_B"]
)
def test_cells_that_torch_does_not_write_are_none(text):
    assert cells_of(text) is None


@pytest.mark.parametrize(
    ("content", "where", "told"),
    [
        ("0F0abc,0B0\n", "row 1, cell 1", "'0F0abc' is no action of torch"),
        ("0F0,0B0\n1F0,1F0,1B0\n", "row 2, cell 2", "1F0: that is done already, see row 2, cell 1"),
        ("0F0,0I0,0B0\n", "row 1, cell 3", "0B0: that is done already, see row 1, cell 2"),
        ("0F0,0B0,0W0\n", "row 1, cell 3", "0W0: that is done already"),
        ("0B0,0F0\n", "row 1, cell 1", "0B0 comes before 0F0"),
        ("0F0,0W0,0I0\n", "row 1, cell 2", "0W0 comes before 0I0"),
        ("0F0,,0B0\n0F1,0B1\n", "row 2, cell 1", "0F1: stage 0 is rank 0's, see row 1, cell 1"),
        ("0F0,0B0\n\n1F0,1B0\n", "row 2", "nothing in this row"),
        ("0F0,0B0\n2F0,2B0\n", None, "stage 1 has no operation in any row"),
        ("0F0,0F1,0B0\n", "row 1", "0I1 is missing: stage 0 has 1 of 2"),
        ("0F0,0I0\n", "row 1", "0W0 is missing"),
        ("0F0,0B0\n1F1,1B1\n", "row 1", "0F1 is missing"),
        ("0F0,0F999999999,0B0\n", "row 1", "0F1 is missing"),
        ("0F0,0B0,0F1,0B1\n1F1,1F0,1B1,1B0\n", "row 1, cell 2", "can never finish"),
        ("99999F0\n", "row 1, cell 1", "at most 4096 stages"),
        ("0SEND_F0\n", None, "no operation at all"),
        ("0F0,0B0\n1F0,1B0,1SEND_B0\n", "row 1, cell 2", "0B0 runs before its 0RECV_B0"),
        ('"0F0\n', "row 1", "cannot be read as CSV"),
        ("", None, "is empty"),
        ("\n", None, "is empty"),
        ("\xff", "row 1, cell 1", "is no action"),
        ("," * 100 + "\n", "row 1", "nothing in this row"),
        ("0F" + "9" * 200_000 + "\n", "row 1", "cannot be read as CSV"),
        ("0F" + "9" * 1000 + "\n", "row 1, cell 1", "is no action"),
        ("((((((((0F0;1B0)OVERLAP_F_B\n", "row 1, cell 1", "is no action"),
    ],
)
def test_what_is_wrong_is_told_with_row_and_cell(tmp_path, content, where, told):
    def read() -> None:
        found = parse_torch_csv(content.encode(), "x.csv")
        found.timetable(found.problem(costs(found.placement.stages)))

    with pytest.raises(FileFormatError) as raised:
        read()
    assert raised.value.where == where
    assert told in str(raised.value)
    assert len(str(raised.value)) < 400


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(FileFormatError, match="not UTF-8"):
        parse_torch_csv(b"0F0,\xff\xfe", "x.csv")
    assert parse_torch_csv(b"\xef\xbb\xbf0F0,0B0\r\n", "x.csv").microbatches == 1


def test_a_loss_that_torch_would_give_to_another_microbatch_is_noted():
    (note,) = parse_torch_csv(b"0F1,0F0,0B1,0B0\n", "x").notes
    assert note == "row 1, cell 1: 0F1 is forward 0 of the last stage, and torch gives it the loss of 0"


def test_the_verb(tmp_path):
    path, out = tmp_path / "x.csv", tmp_path / "t.json"
    torchs_own("DualPipeV", 2, 4)._dump_csv(str(path))
    profile = put_profile(tmp_path, costs(4))
    told = call("read", "torch-csv", path, "--profile", profile, "-o", out)
    assert "compute_comms: 4 stages on 2 ranks (v placement), 4 microbatches" in told.stderr
    assert "that torch runs together" in told.stderr
    assert call_json("check", out)["ok"]
    figures = call_json("read", "torch-csv", path, "--profile", profile, "--objective", "makespan", "--memory", "9x")
    assert (figures["objective"], figures["stages"], figures["placement"]) == ("makespan", 4, "v")
    assert call_json("read", "torch-csv", "-", "--profile", profile, given=path.read_bytes())["ranks"] == 2


def test_the_verbs_refusals(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("0F0,0F0\n")
    profile = put_profile(tmp_path, costs(2))
    assert "x.csv: at row 1, cell 2: 0F0: that is done" in error_of(
        call("read", "torch-csv", path, "--profile", profile, code=2)
    )
    path.write_text("0F0,0B0\n")
    assert "has 1 stage, the profile has 2" in error_of(call("read", "torch-csv", path, "--profile", profile, code=2))
    assert "Missing option '--profile'" in error_of(call("read", "torch-csv", path, code=2))
    assert "torch-csv" in error_of(call("read", "other", path, "--profile", profile, code=2))
    assert "no such file" in error_of(call("read", "torch-csv", tmp_path / "no", "--profile", profile, code=2))
    path.write_text("0F0,0B0\n1F0,1B0\n")
    heavy = put_profile(
        tmp_path, Profile.uniform(2, forward_ns=1, backward_input_ns=1, backward_weight_ns=1, activation_bytes=9)
    )
    assert "memory" in call("read", "torch-csv", path, "--profile", heavy, "--memory", "5", code=1).stderr


GOOD = {
    "compute_only": "0F0,0F1,,0I0,0W0,0B1\n1F0,1B0,(1F1;1B1)OVERLAP_F_B\n",
    "compute_comms": "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD\n"
    "1RECV_F0,1UNSHARD,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1RESHARD\n",
}


@settings(max_examples=200, deadline=None)
@given(layout=st.sampled_from(sorted(GOOD)), data=st.data())
def test_a_damaged_file_is_read_or_refused_in_one_line(layout, data):
    rows = [line.split(",") for line in GOOD[layout].splitlines()]
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.sampled_from(rows))
        at = data.draw(st.integers(0, max(0, len(row) - 1)))
        match data.draw(st.sampled_from(["drop", "repeat", "swap", "text", "move"])):
            case "drop" if row:
                del row[at]
            case "repeat" if row:
                row.insert(at, row[at])
            case "swap" if len(row) > 1:
                row[at], row[at - 1] = row[at - 1], row[at]
            case "text" if row:
                row[at] = data.draw(st.text(max_size=8)) + row[at]
            case "move" if row:
                rows[0].append(row.pop(at))
    text = "".join(",".join(row) + "\n" for row in rows)
    told, timetable = "", None
    try:
        found = parse_torch_csv(text.encode("utf-8", "replace"), "x.csv")
        timetable = found.timetable(found.problem(costs(found.placement.stages)))
    except FileFormatError as error:
        told = str(error)
    if timetable is None:
        assert len(told.splitlines()) == 1
    else:
        assert violations(timetable.problem, timetable) == ()


@pytest.mark.parametrize("layout", GOOD)
def test_the_undamaged_files_are_read(layout):
    found = parse_torch_csv(GOOD[layout].encode(), "x.csv")
    assert (found.layout, found.microbatches) == (layout, 2)
    timetable = found.timetable(found.problem(costs(2)))
    assert violations(timetable.problem, timetable) == ()


def test_more_cells_than_any_schedule_has_are_refused_at_once(monkeypatch):
    monkeypatch.setattr("zbsolve.interop.torch.read.MOST_ACTIONS", 4)
    with pytest.raises(FileFormatError, match="more than 4 cells"):
        parse_torch_csv(b"0F0,0F1,0B0,0B1,,\n", "x.csv")
    with pytest.raises(FileFormatError, match="row 2, cell 2: there are more than 4 cells"):
        parse_torch_csv(b"0F0,0F1,0B0\n1F0,(1F1;1B0)OVERLAP_F_B\n", "x.csv")


def test_blank_lines_at_the_end_are_no_ranks():
    plain, blank = (parse_torch_csv(f"0F0,0B0\n1F0,1B0\n{end}".encode(), "x.csv") for end in ("", "\n  \n\n"))
    assert blank.order == plain.order
    assert blank.placement.ranks == 2
