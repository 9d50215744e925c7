"""Options that say what is asked: limits, placements, factors, and those that make no sense together."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from tests.cli.helpers import (
    call,
    call_json,
    error_of,
    put_profile,
    put_timetable,
    small_profile,
    small_timetable,
)
from zbsolve.files import read_timetable
from zbsolve.profile import HostLink, Overlap

BAD_LIMITS = {
    "50%": "cannot read '50%'",
    "1.5X": "cannot read '1.5X'",
    "72gib": "cannot read '72gib'",
    "1,5x": "2 limits by commas for 4 ranks",
    "": "cannot read ''",
    "-1x": "cannot read '-1x'",
    "1x,1x,1y,1x": "cannot read '1y', the limit of rank 2",
    "9999PiB": "cannot read '9999PiB'",
    "1.5B": "cannot read '1.5B'",
}


@pytest.mark.parametrize("limit", BAD_LIMITS)
def test_a_limit_that_cannot_be_read_is_answered_with_all_forms(tmp_path, limit):
    profile = put_profile(tmp_path, small_profile(4))
    timetable = put_timetable(tmp_path, small_timetable(4))
    for line in ("solve PROFILE -m 3", "baseline 1f1b PROFILE -m 3", "compare PROFILE -m 3", "check T", "simulate T"):
        words = line.replace("PROFILE", profile).replace(" T", f" {timetable}").split()
        told = error_of(call(*words, "--memory", limit, code=2))
        assert BAD_LIMITS[limit] in told
        for form in ("bytes", "72GiB", "1.5x", "unlimited", "by commas"):
            assert form in told.split("give ")[-1]


def test_the_default_limit_is_said_as_it_is():
    for verb, default in (("solve", "unlimited"), ("check", "the one in the file"), ("simulate", "the one in the")):
        assert f"Default: {default}" in " ".join(call(verb, "--help").stdout.split())
    assert "zb-v" not in call("baseline", "--help").stdout


@pytest.mark.parametrize(
    ("stages", "options", "ranks", "name"),
    [
        (4, "", 4, "linear"),
        (4, "--ranks 4 --placement linear", 4, "linear"),
        (4, "--placement v", 2, "v"),
        (4, "--placement looped --chunks 2", 2, "looped"),
        (4, "--placement looped --ranks 2", 2, "looped"),
        (8, "--placement wave --ranks 2", 2, "wave"),
        (4, "--placement bidirectional", 4, "bidirectional"),
        (4, "--placement 0,1,1,0", 2, "v"),
        (3, "--placement 0,1,0", 2, "custom"),
    ],
)
def test_placement_from_options(tmp_path, stages, options, ranks, name):
    path = put_profile(tmp_path, small_profile(stages))
    told = call_json("baseline", "naive", path, "-m", "2", *options.split())
    assert (told["ranks"], told["placement"]) == (ranks, name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--ranks 3", "3 ranks"),
        ("--chunks 2", "looped"),
        ("--placement looped", "--ranks or --chunks"),
        ("--placement looped --ranks 3", "evenly"),
        ("--placement v --chunks 3", "2 chunk"),
        ("--placement wave --chunks 1", "even"),
        ("--placement spiral", "spiral"),
        ("--placement 0,1,1", "placement"),
        ("--placement 0,2,2,0", "rank 1 holds no stage"),
        ("--placement 0,1,1,0 --ranks 3", "--ranks 3"),
        ("--placement 0,1,1,0 --chunks 3", "--chunks 3"),
        ("--placement 0,1,1,-1", "none of"),
        ("--memory 1,2", "4 ranks"),
        ("--memory much", "much"),
        ("--memory 1x,,1x,1x", "rank 1"),
        ("--memory nanx", "nanx"),
        ("--objective joy", "joy"),
        ("-m 0", "microbatches"),
        ("-m 99999999", "too large"),
        ("-m 1e3", "'1e3' is not a whole number."),
        ("-m 1.5", "'1.5' is not a whole number."),
        ("--time-limit soon", "'soon' is not a number."),
        ("-o ''", "the name of a file after -o is empty ('')"),
        ("--start ''", "the name of a file is empty ('')"),
        ("--time-limit nan", "finite"),
        ("--time-limit -1", "positive, finite number of seconds"),
        ("--time-limit 0", "positive, finite number of seconds"),
        ("--gap -1", "0 or more"),
        ("--gap inf", "finite"),
        ("--seed -1", "seed"),
        ("--workers 0", "workers"),
        ("--work-limit 0", "work-limit"),
        ("--ranks " + "9" * 5000, "ranks"),
    ],
)
def test_options_that_make_no_sense_are_one_message(tmp_path, options, words):
    path = put_profile(tmp_path, small_profile(4))
    assert words in error_of(call("solve", path, "-m", "2", *shlex.split(options), code=2))


def test_messages_of_click_are_laid_out_in_one_line(profile, timetable):
    assert "Choose from: torch-csv, torch-csv-comms, " in error_of(call("emit", timetable, code=2))
    assert "Choose from: profile, timetable. See `" in error_of(call("schema", code=2))


def test_one_is_no_plural(tmp_path):
    profile, out = put_profile(tmp_path, small_profile(1)), str(tmp_path / "t.json")
    told = call("baseline", "1f1b", profile, "-m", "1", "-o", out).stdout
    assert "1 microbatch, 1 stage on 1 rank (linear)" in told
    assert "operations on 1 rank, period" in call("check", out).stdout
    assert "1 limit" not in call("solve", profile, "-m", "1", "--memory", "1,1", code=2).stderr


def test_ranks_and_microbatches_that_differ(profile, tmp_path):
    path = tmp_path / "t.json"
    options = ("--rank-factors", "1,1.5", "--microbatch-factors", "1,0.5,2")
    made = call_json("baseline", "1f1b", profile, "-m", "3", *options, "-o", str(path))
    found = read_timetable(path)
    assert [str(f) for f in found.problem.rank_factors] == ["1", "1.5"]
    assert [str(f) for f in found.problem.microbatch_factors] == ["1", "0.5", "2"]
    assert made["digest"] == found.problem.digest
    assert call_json("check", str(path))["ok"]
    solved = call_json("solve", profile, "-m", "3", *options, "--time-limit", "5")
    assert solved["period_ns"] <= made["period_ns"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rank-factors", "1,1,1"), "3 factors for 2 ranks"),
        (("--rank-factors", "1,fast"), "the factor of rank 1 must be a decimal number"),
        (("--microbatch-factors", "1,1,0"), "the factor of microbatch 2 must be a decimal number above 0"),
    ],
)
def test_factors_that_cannot_be_used(profile, options, words):
    assert words in call("baseline", "1f1b", profile, "-m", "3", *options, code=2).stderr.replace("\n", " ")


def test_forwards_only(profile, tmp_path):
    path = tmp_path / "t.json"
    made = call_json("solve", profile, "-m", "3", "--forward-only", "--time-limit", "5", "-o", str(path))
    assert (made["status"], made["period_ns"]) == ("optimal", 3000)
    assert call_json("check", str(path), "--bound")["ok"]
    assert call_json("baseline", "forward-only", profile, "-m", "3")["digest"] == made["digest"]
    shown = call_json("compare", profile, "-m", "3", "--forward-only", "--time-limit", "5")
    assert [row["schedule"] for row in shown["rows"]] == ["forward-only", "solved"]
    assert "use forward-only" in call("baseline", "1f1b", profile, "-m", "3", "--forward-only", code=2).stderr
    call("draw", str(path))


NO_USE = {
    "--recompute": "--recompute saves nothing: no stage of the profile has checkpoint_bytes",
    "--offload": "--offload saves nothing: every stage of the profile has 0 offload_bytes",
    "--paired": "--paired saves nothing: the profile has no overlaps",
}


@pytest.mark.parametrize("option", NO_USE)
def test_a_choice_that_the_profile_leaves_nothing_to_is_told(tmp_path, option):
    costs = small_profile(2)
    stages = tuple(replace(cost, offload_bytes=0) for cost in costs.stages)
    bare = put_profile(tmp_path, replace(costs, stages=stages, host_link=HostLink()))
    quick = ("--work-limit", "20")
    lines = [("solve", bare, "-m", "2", *quick), ("compare", bare, "-m", "2", "--schedule", "1f1b", *quick)]
    lines += [("baseline", "1f1b", bare, "-m", "2")]
    if option != "--paired":
        lines += [("sweep", bare, "-m", "2", "--memory", "1x", "--jobs", "1", *quick)]
    for line in lines:
        assert NO_USE[option] in call(*line, option).stderr.replace("\n", " "), line
        assert "saves nothing" not in call(*line, option, "-q").stderr
        assert "saves nothing" not in call(*line).stderr
    told = call("baseline", "forward-only", bare, "-m", "2", option).stderr
    assert f"{option} changes nothing: forwards alone" in told.replace("\n", " ")


def test_a_choice_that_may_be_of_use_is_not_remarked_on(tmp_path):
    costs = small_profile(2)
    overlap = Overlap(forward_stage=0, backward_stage=0, forward_backward_overlap_ns=2500)
    stages = tuple(replace(cost, checkpoint_bytes=0) for cost in costs.stages)
    useful = put_profile(tmp_path, replace(costs, stages=stages, overlaps=(overlap,), host_link=HostLink()))
    told = call("baseline", "1f1b", useful, "-m", "2", "--recompute", "--offload", "--paired").stderr
    assert "nothing" not in told


def test_a_limit_too_small_says_what_does_not_fit(profile):
    asked = ("solve", profile, "-m", "4", "--memory", "1")
    assert "with one microbatch at a time" in call(*asked, code=3).stderr.replace("\n", " ")
    assert "with one sequence at a time" in call(*asked, "--slices", "2", code=3).stderr.replace("\n", " ")


def test_sequences_in_slices(profile, tmp_path):
    path = tmp_path / "t.json"
    asked = ("-m", "4", "--slices", "2")
    made = call_json("solve", profile, *asked, "--time-limit", "5", "-o", str(path))
    assert made["slices"] == 2
    assert call_json("check", str(path), "--bound")["ok"]
    published = call_json("baseline", "seq-1f1b", profile, *asked)
    assert published["digest"] == made["digest"]
    assert (published["period_ns"], published["peak_bytes"]) == (15_000, [6, 4])
    assert "4 microbatches (2 sequences of 2 slices)" in call("baseline", "naive", profile, *asked).stdout
    shown = call_json("compare", profile, *asked, "--time-limit", "2")
    names = [row["schedule"] for row in shown["rows"]]
    assert names == ["naive", "gpipe", "seq-1f1b", "seq-zb-h1", "solved"]
    assert "use slices=1, or seq-1f1b" in call("baseline", "1f1b", profile, *asked, code=2).stderr.replace("\n", " ")
    assert "--slices" in call("baseline", "seq-1f1b", profile, "-m", "4", code=2).stderr
    assert "sequences x slices" in call("solve", profile, "-m", "4", "--slices", "3", code=2).stderr.replace("\n", " ")
    refused = call("emit", str(path), "--to", "torch-csv", "-o", str(tmp_path / "x.csv"), code=2)
    assert "slices of one sequence" in refused.stderr.replace("\n", " ")
    for to in ("perfetto", "csv"):
        call("emit", str(path), "--to", to, "-o", str(tmp_path / f"x.{to}"))
    for verb in ("draw", "explain"):
        call(verb, str(path))
    call("report", str(path), "-o", str(tmp_path / "r.html"))
    assert "2 sequences of 2 slices" in (tmp_path / "r.html").read_text()
