"""Each verb does what it says, on small problems."""

from __future__ import annotations

import json

import pytest

from tests.cli.helpers import (
    ROOT,
    call,
    call_json,
    error_of,
    put_profile,
    put_timetable,
    small_profile,
    small_timetable,
)
from zbsolve.check import violations
from zbsolve.cli import VERBS, main
from zbsolve.files import read_profile, read_solution_record, read_timetable, schema

SOLUTION_FIELDS = {
    *("status", "objective", "period_ns", "makespan_ns", "lower_bound_ns", "bound", "gap", "bubble", "peak_bytes"),
    *("limit_bytes", "method", "seconds", "seed", "digest", "ranks", "stages", "microbatches"),
}


ALL_VERBS = sorted({*VERBS, "profile measure", "profile show"} - {"profile"})


@pytest.mark.parametrize("verb", ALL_VERBS)
def test_every_verb_has_help_json_and_quiet(verb):
    told = call(*verb.split(), "--help").stdout
    assert "--json" in told
    assert "--quiet" in told


@pytest.mark.parametrize("verb", ["", *ALL_VERBS, "profile import"])
def test_help_keeps_its_lines_and_shows_no_marks(verb):
    assert "\\b" not in call(*verb.split(), "--help").stdout


def test_solve_writes_a_report_beside_the_best_published_schedule(profile, tmp_path):
    page = tmp_path / "r.html"
    call("solve", profile, "-m", "3", "--memory", "1x", "--time-limit", "5", "--report", str(page))
    text = page.read_text()
    assert "solved" in text
    assert "zb-h1" in text
    for path in ("-", profile):
        error_of(call("solve", profile, "-m", "3", "--report", path, code=2))


def test_from_a_trace_of_torchs_profiler_to_a_report_in_two_commands(tmp_path):
    traces = [str(ROOT / "tests" / "interop" / "fixtures" / f"pipelining.rank{rank}.json.gz") for rank in (0, 1)]
    mine, page = str(tmp_path / "mine.json"), tmp_path / "report.html"
    call("profile", "import", *traces, "-o", mine)
    call("solve", mine, "-m", "8", "--placement", "v", "--work-limit", "200", "--workers", "1", "--report", str(page))
    assert page.stat().st_size > 10_000


def test_the_list_of_verbs_is_complete():
    listed = call("--help").stdout
    assert all(f"\n  {verb}" in listed for verb in VERBS)
    for verb in VERBS:
        assert main.get_command(None, verb).name == verb


def test_solve_prints_a_table_and_says_how_to_keep_it(profile):
    result = call("solve", profile, "--microbatches", "3", "--memory", "1x", "--time-limit", "5")
    assert "optimal" in result.stdout
    assert "10 us (10000 ns)" in result.stdout
    assert "-o FILE" in result.stderr


def test_solve_writes_a_timetable_that_passes_check(profile, tmp_path):
    path = tmp_path / "t.json"
    call("solve", profile, "-m", "3", "--memory", "1x", "--time-limit", "5", "-o", str(path))
    found = read_timetable(path)
    assert violations(found.problem, found) == ()
    assert read_solution_record(path).value_ns == found.period_ns == 10_000
    assert call_json("check", str(path)) == {"ok": True, "violations": []}


def test_solve_json_has_the_fields_of_the_design(profile):
    told = call_json("solve", profile, "-m", "3", "--memory", "1x", "--time-limit", "5")
    assert told.keys() >= SOLUTION_FIELDS
    assert (told["status"], told["period_ns"], told["lower_bound_ns"], told["gap"]) == ("optimal", 10_000, 10_000, 0)
    assert (told["ranks"], told["stages"], told["microbatches"], told["limit_bytes"]) == (2, 2, 3, [4, 4])
    assert told["bubble"] == pytest.approx(0.1)
    assert len(told["peak_bytes"]) == 2


def test_solve_starts_from_a_timetable(profile, timetable):
    told = call_json("solve", profile, "-m", "3", "--start", timetable, "--time-limit", "2")
    assert told["period_ns"] <= small_timetable().period_ns


def test_a_start_that_cannot_run_is_refused(profile, timetable, tmp_path, monkeypatch):
    def never(*args: object, **options: object) -> None:
        raise AssertionError("the search has begun")

    monkeypatch.setattr("zbsolve.solver.solve", never)
    content = json.loads((tmp_path / "t.json").read_text())
    other = put_timetable(tmp_path, small_timetable(4), "other.json")
    for microbatches in ("3", "5"):
        line = ("solve", profile, "-m", microbatches, "--start")
        for name in sorted(BREAKINGS.keys() - {"all at once"}):  # the times of a start do not matter
            broken = json.loads(json.dumps(content))
            BREAKINGS[name](broken["ranks"])
            (tmp_path / "broken.json").write_text(json.dumps(broken))
            told = error_of(call(*line, str(tmp_path / "broken.json"), code=2))
            assert "no order of this problem that can run" in told
        assert "--start" in error_of(call(*line, other, code=2))


def test_a_start_that_cannot_be_used_is_told(profile, timetable, tmp_path):
    line = ("solve", profile, "--time-limit", "1", "--start", timetable)
    told = call(*line, "-m", "3", "--memory", "3").stderr
    assert "t.json is not used: it does not fit the memory limit (rank 0" in told
    assert "it cannot be carried over to 5 microbatches" in call(*line, "-m", "5", "--memory", "3").stderr
    assert "not used" not in call(*line, "-m", "3").stderr
    assert "not used" not in call(*line, "-m", "2").stderr
    assert "not used" not in call(*line, "-m", "9").stderr
    longer = put_timetable(tmp_path, small_timetable(microbatches=8), "longer.json")
    assert "not used" not in call(*line[:-1], longer, "-m", "9").stderr


def test_solve_quiet_says_nothing_on_stderr(profile):
    assert call("solve", profile, "-m", "3", "-q", "--time-limit", "2").stderr == ""


def test_baseline_lists_without_a_profile():
    told = call_json("baseline", "--list")
    assert {"gpipe", "1f1b", "zb-h1", "zb-h2"} <= {row["name"] for row in told}
    assert "1f1b" in call("baseline", "--list").stdout


def test_baseline_is_a_published_schedule_on_your_costs(profile, tmp_path):
    told = call_json("baseline", "1f1b", profile, "-m", "3", "-o", str(tmp_path / "t.json"))
    assert told.keys() >= SOLUTION_FIELDS
    assert told["period_ns"] == 12_000  # (m + p - 1)(F + B + W)
    assert told["method"] == "1f1b"
    assert read_timetable(tmp_path / "t.json").period_ns == 12_000


@pytest.mark.parametrize(("name", "limits"), [("zb-1p", [4, 4]), ("zb-2p", [8, 8]), ("1f1b", [None, None])])
def test_baseline_takes_the_limit_it_is_made_for(profile, name, limits):
    assert call_json("baseline", name, profile, "-m", "6")["limit_bytes"] == limits
    assert call_json("baseline", name, profile, "-m", "6", "--memory", "1.5x")["limit_bytes"] == [6, 6]
    assert call_json("baseline", name, profile, "-m", "6", "--memory", "unlimited")["limit_bytes"] == [None, None]


def test_baseline_tells_its_name_and_nothing_of_a_search(profile):
    told = call("baseline", "zb-h1", profile, "-m", "3")
    assert "schedule      zb-h1\n" in told.stdout
    assert "gap" in told.stdout
    for word in ("seed", "found by", "status", "feasible"):
        assert word not in told.stdout + told.stderr


def test_baseline_over_the_limit_is_told_but_not_written(profile, tmp_path):
    path = tmp_path / "t.json"
    result = call("baseline", "gpipe", profile, "-m", "6", "--memory", "1x", "-o", str(path), "--json", code=1)
    assert json.loads(result.stdout)["fits"] is False
    assert "memory" in result.stderr
    assert not path.exists()


def test_baseline_accepts_a_solve_command_line_and_says_what_is_idle(profile):
    result = call("baseline", "1f1b", profile, "-m", "3", "--time-limit", "5", "--seed", "1")
    assert "--time-limit has no effect" in result.stderr
    assert "--seed has no effect" in result.stderr


def test_compare_puts_all_schedules_and_the_solved_one_side_by_side(profile):
    told = call_json("compare", profile, "-m", "3", "--memory", "1x", "--time-limit", "5")
    rows = {row["schedule"]: row for row in told["rows"]}
    assert {"gpipe", "1f1b", "zb-h1", "solved"} <= rows.keys()
    for row in rows.values():
        assert row.keys() >= {"schedule", "period_ns", "makespan_ns", "bubble", "peak_bytes", "fits"}
    assert rows["solved"]["fits"]
    assert not rows["gpipe"]["fits"]
    assert rows["solved"]["period_ns"] == 10_000
    table = call("compare", profile, "-m", "3", "--memory", "1x", "--time-limit", "5").stdout
    assert "solved" in table
    assert "does not fit: needs" in table
    assert "- where there is no gap: the bound is of timetables that fit" in table
    assert "no gap" not in call("compare", profile, "-m", "3", "--time-limit", "1").stdout


def test_compare_leaves_out_what_cannot_be(tmp_path):
    profile = put_profile(tmp_path, small_profile(4))
    told = call_json("compare", profile, "-m", "3", "--placement", "looped", "--ranks", "2", "--time-limit", "2")
    assert "zb-h1" in told["left_out"]
    assert [row["schedule"] for row in told["rows"]][-1] == "solved"


def test_compare_timetables(tmp_path):
    a = put_timetable(tmp_path, small_timetable(microbatches=3), "a.json")
    b = put_timetable(tmp_path, small_timetable(microbatches=5), "b.timetable.json")
    told = call_json("compare", a, b)
    assert [row["schedule"] for row in told["rows"]] == ["a", "b"]
    assert "--seed is for" in error_of(call("compare", a, b, "--seed", "1", code=2))


def test_simulate_times_under_another_profile(timetable, tmp_path):
    slow = put_profile(tmp_path, small_profile(forward_ns=2000), "slow.json")
    told = call_json("simulate", timetable, "--profile", slow, "-o", str(tmp_path / "s.json"))
    assert told["period_ns"] > small_timetable().period_ns
    again = read_timetable(tmp_path / "s.json")
    assert again.problem.profile.stages[0].forward_ns == 2000
    assert violations(again.problem, again) == ()
    assert call_json("simulate", timetable, "--objective", "makespan")["objective"] == "makespan"


def test_simulate_tells_what_is_wrong_with_an_order(timetable, tmp_path):
    content = json.loads((tmp_path / "t.json").read_text())
    content["problem"]["allow"] = ["fused"]
    (tmp_path / "t.json").write_text(json.dumps(content))
    assert "not_allowed" in call("simulate", timetable, code=1).stderr
    content["problem"]["allow"] = ["fused", "split"]
    content["ranks"][0].reverse()
    (tmp_path / "t.json").write_text(json.dumps(content))
    assert "precedence" in call("simulate", timetable, code=1).stderr


def test_simulate_does_not_write_what_does_not_fit(timetable, tmp_path):
    call("simulate", timetable, "--memory", "1", "-o", str(tmp_path / "s.json"), code=1)
    assert not (tmp_path / "s.json").exists()


def test_draw_text_and_pictures(timetable, tmp_path):
    text = call("draw", timetable, "--width", "60").stdout
    assert "F0" in text
    assert "rank 1" in text
    assert "\x1b" not in text
    assert all(len(line) <= 60 for line in text.splitlines())
    assert "F0" in call_json("draw", timetable)["text"]
    other = put_timetable(tmp_path, small_timetable(microbatches=5), "other.json")
    for suffix, magic in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        path = tmp_path / f"x{suffix}"
        assert call_json("draw", timetable, other, "-o", str(path)) == {"files": [str(path)]}
        assert path.read_bytes().startswith(magic)
    assert call("draw", timetable, "-o", "-").stdout.startswith("<?xml")
    assert ".svg" in error_of(call("draw", timetable, "-o", str(tmp_path / "x.gif"), code=2))


BREAKINGS = {
    "a reversed row": lambda ranks: ranks[0].reverse(),
    "all at once": lambda ranks: [op.__setitem__(slice(3, 5), [0, 1]) for row in ranks for op in row],
    "an operation less": lambda ranks: ranks[1].pop(),
    "empty rows": lambda ranks: [row.clear() for row in ranks],
}


@pytest.mark.parametrize("breaking", BREAKINGS)
@pytest.mark.parametrize(
    "line",
    [
        "draw T",
        "draw SOUND T",
        "draw T --json",
        "draw T -o x.svg",
        "draw T -o x.png --json",
        "draw T -o -",
        "emit T --to torch-csv",
        "emit T --to torch-csv --json",
        "emit T --to torch-csv -o x.csv",
        "emit T --to torch-csv-comms",
        "emit T --to torchtitan",
        "emit T --to perfetto -o x.json",
        "emit T --to csv",
        "emit T --to primus",
        "emit T --to zero-bubble",
        "emit T --to megatron-layout --layers 1,1",
        "compare SOUND T",
        "compare SOUND T --json",
    ],
)
def test_a_broken_timetable_has_no_figures(tmp_path, monkeypatch, breaking, line):
    monkeypatch.chdir(tmp_path)
    content = json.loads((tmp_path / put_timetable(tmp_path, name="SOUND")).read_text())
    BREAKINGS[breaking](content["ranks"])
    (tmp_path / "T").write_text(json.dumps(content))
    result = call(*line.split(), code=1)
    count = len(call_json("check", "T", code=1)["violations"])
    lines = result.stderr.splitlines()
    assert result.stdout == ""
    assert lines[0].startswith(f"zbsolve: error: T is no valid timetable: {count} violation")
    assert 3 <= len(lines) <= 7
    assert lines[-1] == "zbsolve check T --json lists all"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["SOUND", "T"]


def test_emit_torch_csv(timetable, tmp_path):
    shown = call("emit", timetable, "--to", "torch-csv").stdout
    assert shown.splitlines()[0].startswith("0F0,")
    path = tmp_path / "zb.csv"
    told = call_json("emit", timetable, "--to", "torch-csv", "-o", str(path))
    assert path.read_text() == shown == call("emit", timetable, "--to", "torch-csv", "-o", "-").stdout
    assert len(told["files"]) == 2
    assert json.loads((tmp_path / told["files"][1]).read_text())
    assert call_json("emit", timetable, "--to", "torch-csv")["rows"][0][0] == "0F0"
    assert "torch-csv" in error_of(call("emit", timetable, "--to", "nothing", code=2))


def test_profile_show(profile):
    assert "imbalance  0.00%" in call("profile", "show", profile).stdout
    told = call_json("profile", "show", profile)
    assert told["sums"]["forward_ns"] == 2000
    assert len(told["stages"]) == 2


def test_profile_measure(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny_model_of_tests.py").write_text(
        "import torch\n"
        "def make():\n"
        "    print('hello from the model')\n"
        "    stages = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)]\n"
        "    return stages, (torch.randn(2, 8), torch.randn(2, 4)), torch.nn.functional.mse_loss\n"
    )
    told = call_json(
        *("profile", "measure", "tiny_model_of_tests:make", "--repeats", "3", "--warmup", "1"),
        *("--name", "tiny", "-o", "p.json", "--host-bandwidth", "25GB"),
    )
    assert told["name"] == "tiny"
    assert told["host_link"]["to_host_bytes_per_second"] == 25 * 10**9
    written = read_profile(tmp_path / "p.json")
    assert len(written.stages) == 2
    assert [stage["offload_bytes"] for stage in told["stages"]] == [stage.offload_bytes for stage in written.stages]
    assert written.host_link.from_host_bytes_per_second == 25 * 10**9
    shown = call("profile", "show", "p.json").stdout
    assert "forward" in shown
    assert "host memory" in shown


def test_profile_measure_tells_doubts_on_stderr(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lost_model_of_tests.py").write_text(
        "import torch\n"
        "def make():\n"
        "    sample = torch.full((2, 8), float('inf')), torch.zeros(2, 8)\n"
        "    return [torch.nn.Linear(8, 8)], sample, torch.nn.functional.mse_loss\n"
    )
    line = ("profile", "measure", "lost_model_of_tests:make", "--repeats", "1", "--warmup", "0")
    told = call(*line, "--json")
    assert "WARNING: the loss of the sample is" in told.stderr
    assert "WARNING: the loss of the sample is" in json.loads(told.stdout)["source"]["note"]
    assert call(*line, "-q").stderr == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("nowhere_to_be_found:make", "nowhere_to_be_found"),
        ("json:loads", "json:loads"),
        ("json:nothing", "nothing"),
        ("json", "MODULE:FUNCTION"),
        ("os:getcwd", "stages"),
        ("json:loads --repeats 0", "repeats"),
    ],
)
def test_profile_measure_refuses(options, words):
    pytest.importorskip("torch")
    assert words in error_of(call("profile", "measure", *options.split(), "-q", code=2))


@pytest.mark.parametrize("kind", ["profile", "timetable"])
def test_schema(kind, tmp_path):
    assert json.loads(call("schema", kind).stdout) == schema(kind)
    call("schema", kind, "-o", str(tmp_path / "s.json"))
    assert json.loads((tmp_path / "s.json").read_text()) == schema(kind)
