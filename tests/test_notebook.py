"""What a notebook shows: small, escaped, without scripts; and data frames."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings

from tests.strategies import problems, random_order
from zbsolve.catalog import baseline
from zbsolve.draw.progress import ProgressLine, describe
from zbsolve.errors import MissingExtra
from zbsolve.interop.tidy import tidy_csv
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.solver import Progress, solve
from zbsolve.timetable import Timetable

HOSTILE = "<script>alert(1)</script> \"&'<b> \x1b[31m \u202e"


class Page(HTMLParser):
    """Collects tags, attributes and text, and refuses what is left open."""

    VOID = frozenset({"rect", "path"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def made(ranks: int = 4, microbatches: int = 6, name: str = "four") -> Timetable:
    profile = Profile.uniform(
        ranks, forward_ns=1000, backward_input_ns=1000, backward_weight_ns=1000, activation_bytes=2, name=name
    )
    problem = Problem(profile=profile, placement=Placement.linear(ranks), microbatches=microbatches)
    return simulate(problem, baseline("zb-h1", problem))


def test_a_timetable_shows_its_operations_and_figures():
    page = Page(made()._repr_html_())
    assert "four: period" in page.text
    assert "6 microbatches, 4 stages on 4 ranks (linear)" in page.text
    assert "F0 of stage 0: 0 ns to 1 us" in page.text
    assert sum(tag == "rect" for tag, _ in page.tags) == 4 + 3 * 4 * 6


def test_a_solution_shows_its_proof():
    solution = solve(made().problem, work_limit=200, workers=1)
    page = Page(solution._repr_html_())
    assert solution.status in page.text
    assert f"{solution.value_ns} ns" in page.text
    assert "gap 0.00%" in page.text


def test_names_are_text_and_nothing_runs_or_loads():
    solution = solve(made(2, 2, HOSTILE).problem, work_limit=50, workers=1)
    for html in (solution._repr_html_(), replace(solution, method=HOSTILE, bound=HOSTILE)._repr_html_()):
        page = Page(html)
        assert {tag for tag, _ in page.tags} <= {
            *("div", "svg", "title", "text", "rect", "path", "span", "table", "tr", "th", "td")
        }
        assert "alert(1)" in page.text
        assert "\x1b" not in html
        for _, attributes in page.tags:
            assert not [name for name in attributes if name.startswith("on") or name in ("href", "src")]


@pytest.mark.parametrize(("ranks", "microbatches"), [(8, 40), (64, 128), (300, 4)])
def test_the_size_is_bounded(ranks, microbatches):
    html = made(ranks, microbatches)._repr_html_()
    assert len(html) < 600_000
    assert ("more rank" in Page(html).text) is (ranks > 32)


@settings(max_examples=40)
@given(problems(variants=True))
def test_any_timetable_can_be_shown(problem):
    timetable = simulate(problem, random_order(problem, 3))
    Page(timetable._repr_html_())


def test_one_with_nothing_in_it_is_shown_as_text():
    problem = made().problem
    assert Page(Timetable(problem=problem, rows=())._repr_html_()).text.startswith("Timetable(0 operations")


def test_a_data_frame_has_a_row_an_operation():
    pd = pytest.importorskip("pandas")
    timetable = made()
    frame = timetable.to_dataframe()
    assert len(frame) == 3 * 4 * 6
    assert list(frame.columns) == [
        *("rank", "position", "kind", "stage", "chunk", "microbatch", "route"),
        *("start_ns", "end_ns", "duration_ns", "held_bytes"),
    ]
    assert frame.groupby("rank").end_ns.max().tolist() == [row[-1].end_ns for row in timetable.rows]
    read = pd.read_csv(io.StringIO(tidy_csv(timetable)), dtype={"microbatch": "Int64", "route": "Int64"})
    pd.testing.assert_frame_equal(frame, read)
    assert set(frame.kind) == {"forward", "backward_input", "backward_weight"}
    solution = solve(timetable.problem, work_limit=50, workers=1)
    pd.testing.assert_frame_equal(solution.to_dataframe(), solution.timetable.to_dataframe())


def test_without_pandas_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pip install 'zbsolve\[notebook\]'"):
        made().to_dataframe()


def at(seconds: float, value_ns: int, method: str = "way") -> Progress:
    return Progress(seconds, value_ns, 10_000, value_ns / 10_000 - 1, method, "load")


def test_a_progress_line_renews_itself_and_ends_with_the_last():
    stream = io.StringIO()
    with ProgressLine(stream) as line:
        for i in range(100):
            line(at(i / 100, 30_000 - i))
        line(at(1.001, 20_000, "\x1b[2J\n"))
    written = stream.getvalue()
    assert 10 <= written.count("\r") <= 12
    assert written.endswith("\n")
    assert "best 20 us (?[2J?)" in written.split("\r")[-1]
    assert len({len(state) for state in written.rstrip("\n").split("\r")[1:-1]}) <= 2  # what was longer is wiped


def test_a_progress_line_listens_to_a_solve():
    stream = io.StringIO()
    with ProgressLine(stream) as line:
        solve(made().problem, work_limit=200, workers=1, on_progress=line)
    assert "gap" in stream.getvalue()
    assert "compiling" in describe(replace(at(1, 20_000), arm="compiling the search"))


def test_nobody_reading_does_not_end_a_search(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with ProgressLine() as line:
        line(at(1, 20_000))
