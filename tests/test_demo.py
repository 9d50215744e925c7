"""The whole way, small: every file is there and can be read back, and nothing is left half done."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from zbsolve.check import check
from zbsolve.demo import run, run_demo
from zbsolve.errors import InvalidInput, MissingExtra, RunError
from zbsolve.files import read_profile, read_timetable
from zbsolve.interop.torch import merged
from zbsolve.metrics import metrics
from zbsolve.simulate import simulate

ROOT = Path(__file__).parents[1]


def test_the_whole_way(tmp_path):
    pytest.importorskip("torch", reason="the extra torch is not installed")
    folder, said = tmp_path / "a" / "b", []
    result = run_demo(folder, quick=True, say=said.append)
    text = "\n".join(said)
    assert [row.schedule for row in result.rows] == ["1F1B", "solved"]
    profile = read_profile(folder / "profile.json")
    assert len(profile.stages) == 4
    for row, name in zip(result.rows, ("1f1b", "solved"), strict=True):
        timetable = read_timetable(folder / f"{name}.json")
        assert timetable.problem.profile == profile
        check(timetable.problem, timetable)
        figures = metrics(simulate(timetable.problem, merged(timetable)))
        assert (row.predicted_ns, row.bubble) == (figures.period_ns, figures.bubble)
        assert row.peak_bytes == max(figures.peak_bytes)
        assert min(row.measured_ns, row.torch_measured_ns) > 0
        assert max(row.gradient_error, row.torch_gradient_error) <= 1e-10
        assert len((folder / f"{name}.csv").read_text().splitlines()) == 4
    assert result.rows[1].predicted_ns <= result.rows[0].predicted_ns
    assert result.solution.lower_bound_ns <= result.solution.value_ns
    assert all(path.is_file() and path.stat().st_size for path in result.files)
    assert sorted(folder.iterdir()) == sorted(result.files)
    for path in result.files:
        assert str(path) in text
    assert ("share" in text) == (result.cores < 4)
    for word in ("bound", "no violations", "gradient error", "rank 3", "torch splits otherwise"):
        assert word in text


@pytest.mark.parametrize("wrong", ["zbsolve", "torch"])
def test_a_wrong_gradient_ends_the_demo(tmp_path, monkeypatch, wrong):
    pytest.importorskip("torch", reason="the extra torch is not installed")
    from zbsolve.demo import both
    from zbsolve.executor.gradients import plain_gradients

    def off_by_a_little(timetables, csvs, arguments, **_):
        from zbsolve.demo.model import build

        right, _ = plain_gradients(*build(**arguments), arguments["microbatches"])
        off = {key: gradient.clone() for key, gradient in right.items()}
        off[0, "1.attention_out.weight"] *= 1 + 1e-9
        gradients = (off, right) if wrong == "zbsolve" else (right, off)
        return [tuple(both.Measured(step_ns=1, gradients=g) for g in gradients) for _ in csvs]

    monkeypatch.setattr(both, "run_both", off_by_a_little)
    with pytest.raises(
        RunError, match=rf"1F1B on {wrong}'s runtime: a gradient differs from the plain model's by .*e-"
    ):
        run_demo(tmp_path, quick=True, say=lambda line: None)


def test_without_torch_the_demo_names_the_extra_and_writes_nothing(tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from zbsolve.demo import run_demo\n"
        "from zbsolve.errors import MissingExtra\n"
        "try:\n    run_demo(sys.argv[1])\nexcept MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out")], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "torch is not installed; install it with: pip install 'zbsolve[torch]'"
    assert not (tmp_path / "out").exists()


def test_importing_the_demo_loads_nothing_heavy():
    code = "import sys, zbsolve.demo; print([m for m in ('torch', 'ortools', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_file_in_the_way_is_a_clear_error(tmp_path):
    pytest.importorskip("torch", reason="the extra torch is not installed")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="cannot make the directory"):
        run_demo(tmp_path / "file", say=lambda line: None)


def test_without_matplotlib_there_is_no_picture_and_a_word(tmp_path, monkeypatch):
    from zbsolve.draw import figure

    def missing(*_, **__):
        raise MissingExtra("matplotlib", "plot")

    monkeypatch.setattr(figure, "draw_timetables", missing)
    from zbsolve.catalog import baseline
    from zbsolve.placement import Placement
    from zbsolve.problem import Problem
    from zbsolve.profile import Profile
    from zbsolve.solver import solve

    profile = Profile.uniform(4, forward_ns=3, backward_input_ns=3, backward_weight_ns=3)
    problem = Problem(profile=profile, placement=Placement.linear(4), microbatches=4)
    solution = solve(problem, time_limit_s=1)
    classic = simulate(problem, baseline("1f1b", problem))
    said = []
    written = run._write(
        tmp_path,
        profile,
        solution,
        (("1F1B", classic), ("solved", solution.timetable)),
        [tmp_path / "1f1b.csv", tmp_path / "solved.csv"],
        run._Talk(said.append),
    )
    assert "pip install 'zbsolve[plot]'" in "".join(said)
    assert sorted(written) == sorted(tmp_path.iterdir())


def test_the_text_is_plain_english_of_a_fair_size():
    content = files("zbsolve.demo").joinpath("text.txt").read_bytes()
    assert 4000 <= len(content) <= 8000
    content.decode("ascii")
