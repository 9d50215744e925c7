from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import strategies
from tests.drawn import one_f_one_b, problem, split_1f1b, timed
from zbsolve.draw.bands import Memory, band_bytes
from zbsolve.draw.figure import MOST_PANELS, _Page, draw_timetables, render
from zbsolve.draw.lettering import choose_lettering
from zbsolve.draw.panel import panels
from zbsolve.errors import InvalidInput, MissingExtra, OrderError
from zbsolve.metrics import metrics
from zbsolve.ops import Kind
from zbsolve.placement import Placement
from zbsolve.simulate import simulate
from zbsolve.timetable import Timetable

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    "</svg><script>alert(1)</script>",
    "$x^{",
    r"$\frac",
    "a & b < c",
    "]]>-->",
    "\x00\x1b[0m",
    "\ud800",
    "流" * 90,
    "",
]


def texts(data: bytes) -> list[str]:
    root = ET.fromstring(data)
    return ["".join(element.itertext()).strip() for element in root.iter(f"{SVG}text")]


def test_an_svg_tells_titles_bubbles_formula_and_units() -> None:
    asked = problem(3, 5, memory_limit="1x")
    first, second = one_f_one_b(asked), split_1f1b(asked)
    data = render([("1F1B", first), ("Solved", second)], "svg")
    found = texts(data)
    assert {"1F1B", "Solved", "rank 0", "rank 2", "time in us", "memory", "F0", "BW4", "W4", "idle", "limit"} <= set(
        found
    )
    for table in (first, second):
        assert f"bubble {100 * metrics(table).bubble:.2f} %" in found
    assert any("bubble = 1 - compute work / (ranks x period)" in text for text in found)
    assert "6 MiB of 6 MiB" in found
    assert ET.fromstring(data).findtext(f"{SVG}title") is not None


def test_the_same_bytes_for_the_same_timetables() -> None:
    table = [("1F1B", one_f_one_b(problem(3, 4)))]
    for form in ("svg", "png"):
        once = render(table, form)
        assert render(table, form) == once
    assert b"date" not in render(table, "svg").lower()


def test_a_png_takes_any_titles() -> None:
    table = one_f_one_b(problem(1, 1))
    assert render([(title, table) for title in HOSTILE], "png", memory=False).startswith(b"\x89PNG")


@pytest.mark.parametrize("title", HOSTILE)
def test_titles_are_text_and_nothing_else(title: str) -> None:
    data = render([(title, one_f_one_b(problem()))], "svg", memory=False)
    root = ET.fromstring(data)
    assert not list(root.iter(f"{SVG}script"))
    shown = [t for t in texts(data) if t]
    if title.startswith("$") or "&" in title:
        assert title in shown


def test_a_png_is_a_png_wide_enough_for_a_readme(tmp_path: Path) -> None:
    path = draw_timetables([("1F1B", one_f_one_b(problem()))], tmp_path / "picture.PNG")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">I", data[16:20]) == (2000,)
    assert os.listdir(tmp_path) == ["picture.PNG"]


def test_a_file_is_replaced_whole_or_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "picture.svg"
    path.write_text("before")
    table = [("1F1B", one_f_one_b(problem()))]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(InvalidInput, match="No space left"):
            draw_timetables(table, path)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["picture.svg"]
    assert draw_timetables(table, path, memory=False) == path
    assert texts(path.read_bytes())


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    table = ("1F1B", one_f_one_b(problem()))
    for name in ("picture.pdf", "picture", "picture.svgz"):
        with pytest.raises(InvalidInput, match=r"\.svg or \.png"):
            draw_timetables([table], tmp_path / name)
    with pytest.raises(InvalidInput, match="at least one"):
        draw_timetables([], tmp_path / "a.svg")
    with pytest.raises(InvalidInput, match="at most"):
        render([table] * (MOST_PANELS + 1), "svg")
    with pytest.raises(InvalidInput, match="null character"):
        draw_timetables([table], "a\0.svg")
    with pytest.raises(InvalidInput, match="cannot be written"):
        draw_timetables([table], tmp_path / "absent" / "a.svg", memory=False)
    short = Timetable(problem=table[1].problem, rows=tuple(row[:-1] for row in table[1].rows))
    with pytest.raises(OrderError):
        render([("broken", short)], "svg")
    assert render([("broken", short)], "svg", memory=False)


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"zbsolve\[plot\]"):
        draw_timetables([("1F1B", one_f_one_b(problem()))], tmp_path / "a.svg")
    assert os.listdir(tmp_path) == []


def test_matplotlib_is_loaded_late_and_left_as_it_was() -> None:
    code = (
        "import sys, zbsolve.draw.figure, zbsolve.draw.terminal\n"
        "assert not {'matplotlib', 'rich'} & set(sys.modules)\n"
        "import matplotlib as mpl; mpl.rcParams['font.size'] = 3\n"
        "settings = lambda: [(k, mpl.rcParams[k]) for k in mpl.rcParams if k != 'backend']\n"
        "before = settings()\n"
        "from tests.drawn import one_f_one_b, problem\n"
        "zbsolve.draw.figure.render([('a', one_f_one_b(problem()))], 'svg')\n"
        "assert settings() == before and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


def test_many_operations_are_few_artists_and_a_small_file() -> None:
    asked = problem(32, 256, memory_limit="2x")
    table = [("split", split_1f1b(asked))]
    assert sum(map(len, table[0][1].rows)) == 24_576
    page = _Page(panels(table), True)
    figure = page.figure()
    assert sum(len(axes.get_children()) for axes in figure.axes) < 300
    assert len(render(table, "svg")) < 1_000_000


def test_idle_windows_are_drawn_so_that_their_share_is_the_bubble() -> None:
    for objective in ("period", "makespan"):
        table = split_1f1b(problem(4, 6, objective=objective))
        (panel,) = panels([("", table)])
        work = sum(t.end_ns - t.start_ns for row in table.rows for t in row)
        room = sum(end - start for start, end in panel.windows)
        assert 1 - work / room == pytest.approx(metrics(table).bubble)
        for row, (start, end) in zip(table.rows, panel.windows, strict=True):
            assert start <= row[0].start_ns
            assert row[-1].end_ns <= end


def test_memory_bands_share_one_scale_and_keep_far_limits_out() -> None:
    near, far = problem(2, 3, memory_limit="1.5x"), problem(2, 3, memory_limit="1TiB")
    a, b = one_f_one_b(near), one_f_one_b(far)
    assert band_bytes([Memory.of(a), Memory.of(b)]) == 6 << 20  # 1.5 x 2 ranks x 2 MiB
    assert Memory.of(b).limit_lines(panels([("", b)])[0], 6 << 20) == []
    assert len(Memory.of(a).limit_lines(panels([("", a)])[0], 6 << 20)) == 2
    assert Memory.of(b).label(0) == "4 MiB of 1 TiB"
    tops = [min(y for _, y in area) for area in Memory.of(a).areas(panels([("", a)])[0], 6 << 20)]
    assert [top - rank for rank, top in enumerate(tops)] == pytest.approx([0.97 - 0.77 * 4 / 6, 0.97 - 0.77 * 2 / 6])


def test_a_profile_without_sizes_has_no_memory_bands() -> None:
    table = one_f_one_b(problem(costs={"activation_bytes": 0, "backward_weight_bytes": 0}))
    assert "memory" not in texts(render([("", table)], "svg"))


def test_letters_are_upright_where_they_fit_then_turned_then_left_out() -> None:
    kinds = {Kind.FORWARD: [30.0] * 9, Kind.BACKWARD_WEIGHT: [30.0] * 9}
    assert choose_lettering(kinds, 1, 18).ways == dict.fromkeys(kinds, "line")
    assert choose_lettering(kinds, 1, 18).size == 7.5
    kinds[Kind.BACKWARD_WEIGHT] = [4.5] * 9
    assert choose_lettering(kinds, 1, 18).ways == {Kind.FORWARD: "line", Kind.BACKWARD_WEIGHT: "turned"}
    kinds[Kind.BACKWARD_WEIGHT] = [1.0] * 9
    assert choose_lettering(kinds, 1, 18).ways == {Kind.FORWARD: "line"}
    assert choose_lettering({Kind.FORWARD: [7.0] * 9}, 2, 18).ways == {Kind.FORWARD: "stack"}
    assert choose_lettering(kinds, 1, 3).ways == {}
    assert choose_lettering({}, 1, 18).ways == {}


def test_every_placement_draws() -> None:
    for placement in (
        Placement.linear(1),
        Placement.looped(2, 3),
        Placement.v(3),
        Placement.wave(2, 4),
        Placement.bidirectional(4),
        Placement.custom([0], [1]),
    ):
        asked = problem(placement=placement, microbatches=1, objective="makespan")
        data = render([(placement.name, simulate(asked, strategies.random_order(asked, 3)))], "svg")
        assert placement.name in texts(data)


def test_three_hundred_ranks_stay_on_the_page() -> None:
    asked = problem(300, 1)
    data = render([("tall", timed(asked, *["F0 X0"] * 300))], "png")
    width, height = struct.unpack(">II", data[16:24])
    assert width == 2000
    assert height < 6_000


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_simulated_order_draws(data: st.DataObject) -> None:
    asked = data.draw(strategies.problems(limits=True))
    table = simulate(asked, data.draw(strategies.orders(asked)))
    shown = texts(render([(data.draw(st.text(max_size=40)), table)], "svg"))
    assert any(re.fullmatch(r"bubble -?\d+\.\d\d %", text) for text in shown)
