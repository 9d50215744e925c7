from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tests import strategies
from tests.drawn import one_f_one_b, problem, split_1f1b, timed
from zbsolve.draw.colours import FILL, TEXT
from zbsolve.draw.panel import LONGEST_TITLE, clean, panels, ticks
from zbsolve.draw.terminal import gantt, gantt_stack
from zbsolve.errors import InvalidInput
from zbsolve.metrics import metrics
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.simulate import simulate
from zbsolve.timetable import TimedOp, Timetable

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def rank_lines(text: str, ranks: int) -> list[str]:
    """The time columns of the first picture's ranks."""
    lines = [line for line in text.splitlines() if re.match(r"\s*(rank )?\d+ ", line)]
    return [re.sub(r"^\s*(rank )?\d+ ", "", line) for line in lines[:ranks]]


def test_a_small_picture() -> None:
    both = [("1F1B", one_f_one_b(problem())), ("split", split_1f1b(problem()))]
    assert gantt_stack(both, width=72, colour=False) == (
        "1F1B: period 12 us, bubble 25.00 %\n"
        "rank 0 F0---F1---..........&0--------F2---&1--------.....&2--------\n"
        "rank 1      F0---&0--------F1---&1--------F2---&2--------...............\n"
        "\n"
        "split: period 10 us, bubble 10.00 %\n"
        "rank 0 F0---F1---.....B0---W0---F2---B1---W1---B2---W2---\n"
        "rank 1      F0---B0---F1---B1---W0---F2---B2---W1---W2---.....\n"
        "       +---------+---------+---------+---------+---------+---------+----\n"
        "       0         2us       4us       6us       8us       10us      12us\n"
        "F forward   B backward, input gradient   W backward, weight gradient\n"
        "& backward, both in one   . idle\n"
        "one column is 200 ns; bubble = 1 - compute work / (ranks x period)\n"
    )


def test_the_same_timetable_at_every_width_keeps_its_width() -> None:
    title = "split \N{CJK UNIFIED IDEOGRAPH-6D41}" * 9
    table = [("1F1B", one_f_one_b(problem(4, 6))), (title, split_1f1b(problem(4, 6)))]
    for width in range(20, 201):
        for line in gantt_stack(table, width=width, colour=False).splitlines():
            assert cell_len(line) <= width
            assert line == line.rstrip()


def test_colour_adds_nothing_but_colour() -> None:
    table = split_1f1b(problem(4, 6))
    for width in (20, 57, 100):
        coloured = gantt(table, width=width, colour=True)
        assert ANSI.sub("", coloured) == gantt(table, width=width, colour=False)
        assert coloured != ANSI.sub("", coloured)
        assert all(line.count("\x1b[0m") * 2 == line.count("\x1b[") for line in coloured.splitlines())


def test_plain_is_ascii() -> None:
    assert gantt(split_1f1b(problem(3, 5)), colour=False).isascii()


def test_columns_are_to_scale() -> None:
    table = timed(problem(1, 1, costs={"forward_ns": 3000, "backward_ns": 7000}), "F0 X0")
    (line,) = rank_lines(gantt(table, width=27, colour=False), 1)
    assert line == "F0------" + "&0" + "-" * 15


def test_operations_too_short_for_a_column_show_as_density() -> None:
    busy = timed(problem(1, 200), " ".join(f"F{j} X{j}" for j in range(200)))
    (line,) = rank_lines(gantt(busy, width=40, colour=False), 1)
    assert set(line) == {"#"}
    long = problem(1, 2, costs={"forward_ns": 1, "backward_input_ns": 100_000, "backward_weight_ns": 100_000})
    (line,) = rank_lines(gantt(timed(long, "F0 X0 F1 X1"), width=40, colour=False), 1)
    assert line.count("#") == 2  # the forwards of 1 ns, each in a column with a backward
    assert "# several in one column" in gantt(timed(long, "F0 X0 F1 X1"), colour=False)


def test_a_column_mostly_idle_is_a_colon() -> None:
    asked = problem(2, 1, costs={"forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1, "latency_ns": 1000})
    lines = rank_lines(gantt(timed(asked, "F0 B0 W0", "F0 B0 W0"), width=60, colour=False), 2)
    assert ":" in lines[0]
    assert "F" not in lines[0]


def test_overlapping_operations_are_not_hidden() -> None:
    asked = problem(1, 1)
    row = (TimedOp(Op(Kind.FORWARD, 0, 0), 0, 2000), TimedOp(Op(Kind.BACKWARD, 0, 0), 1000, 3000))
    (line,) = rank_lines(gantt(Timetable(problem=asked, rows=(row,)), width=32, colour=False), 1)
    assert line == "F0--------" + "#" * 10 + "&0--------"


def test_times_before_zero_and_backwards_do_not_crash() -> None:
    asked = problem(1, 1)
    row = (TimedOp(Op(Kind.FORWARD, 0, 0), -5000, -1000), TimedOp(Op(Kind.BACKWARD, 0, 0), 3000, 1000))
    assert "#" in gantt(Timetable(problem=asked, rows=(row,)), colour=False)


def test_later_chunks_are_lower_case() -> None:
    asked = problem(placement=Placement.v(2), microbatches=1, objective="makespan")
    order = simulate(asked, strategies.random_order(asked, 1, fused=0.0))
    lines = rank_lines(gantt(order, width=100, colour=False), 2)
    assert all("F0-" in line and "f0-" in line and "w0-" in line for line in lines)
    wave = problem(placement=Placement.wave(1, 4), microbatches=1)
    text = gantt(simulate(wave, strategies.random_order(wave, 1, fused=0.0)), width=120, colour=False)
    assert "F0@0" in text
    assert "f0@3" in text


def test_makespan_counts_idle_from_the_global_start() -> None:
    lines = rank_lines(gantt(one_f_one_b(problem(2, 2, objective="makespan")), width=60, colour=False), 2)
    assert lines[1].startswith(".")
    assert "bubble = 1 - compute work / (ranks x makespan)" in gantt(
        one_f_one_b(problem(2, 2, objective="makespan")), colour=False
    )


def test_idle_columns_show_the_bubble() -> None:
    text = gantt(one_f_one_b(problem(4, 8)), width=7 + 36 * 10, colour=False)
    shown = rank_lines(text, 4)
    idle = sum(line.count(".") for line in shown)
    assert idle / (4 * 330) == pytest.approx(metrics(one_f_one_b(problem(4, 8))).bubble, abs=0.01)


def test_a_rank_without_work_and_work_without_time() -> None:
    idle = problem(placement=Placement.custom([0], [1]), microbatches=1)
    assert len(rank_lines(gantt(simulate(idle, strategies.random_order(idle, 0)), colour=False), 2)) == 2
    nothing = problem(1, 1, costs={"forward_ns": 0, "backward_ns": 0})
    assert "bubble 0.00 %" in gantt(timed(nothing, "F0 X0"), colour=False)
    assert metrics(timed(nothing, "F0 X0")).bubble == 0


HOSTILE = ["\x1b[31mred", "a\nb", "\x00\x07", "\ud800", "x" * 10_000, "\N{RIGHT-TO-LEFT OVERRIDE}a"]


@pytest.mark.parametrize("title", HOSTILE)
def test_titles_cannot_speak_to_the_terminal(title: str) -> None:
    text = gantt_stack([(title, one_f_one_b(problem()))], width=50, colour=False)
    assert all(c.isprintable() or c == "\n" for c in text)
    text.encode()


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 20"):
        gantt(one_f_one_b(problem()), width=19)
    with pytest.raises(InvalidInput, match="at least one"):
        gantt_stack([])
    with pytest.raises(InvalidInput, match="no ranks"):
        gantt(Timetable(problem=problem(), rows=()))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_simulated_order_draws(data: st.DataObject) -> None:
    asked = data.draw(strategies.problems())
    table = simulate(asked, data.draw(strategies.orders(asked)))
    width = data.draw(st.integers(20, 200))
    text = gantt(table, width=width, colour=False)
    assert all(cell_len(line) <= width for line in text.splitlines())
    assert len(rank_lines(text, asked.placement.ranks)) == asked.placement.ranks
    (panel,) = panels([("", table)])
    assert panel.bubble == pytest.approx(metrics(table).bubble)


@given(span=st.integers(0, 2**62), most=st.integers(1, 30))
def test_ticks_are_round_and_few(span: int, most: int) -> None:
    found = ticks(span, most)
    assert str(found.step_ns).rstrip("0") in ("1", "2", "5")
    assert span <= found.step_ns * most
    assert found.step_ns == 1 or span > found.step_ns * most * 2 / 5  # the next smaller step would not do
    assert found.step_ns % found.unit_ns == 0


def test_titles_are_short_and_on_one_line() -> None:
    assert clean(" a \n\t b ") == "a b"
    assert len(clean("x" * 1000)) == LONGEST_TITLE


def _linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def _times(matrix: list[list[float]], vector: list[float]) -> list[float]:
    return [min(1.0, max(0.0, sum(a * b for a, b in zip(row, vector, strict=True)))) for row in matrix]


def _lab(linear: list[float]) -> tuple[float, float, float]:
    to_xyz = [[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0178, 0.1095, 0.8728]]  # of white, so white is 1
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in _times(to_xyz, linear))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


# Machado, Oliveira, Fernandes, "A physiologically-based model for simulation of color vision deficiency", 2009
SIGHT = {
    "normal": [[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


@pytest.mark.parametrize("sight", SIGHT)
def test_kinds_stay_apart_for_every_sight(sight: str) -> None:
    seen = {kind: _lab(_times(SIGHT[sight], _linear(colour))) for kind, colour in FILL.items()}
    for a in Kind:
        for b in Kind:
            if a is not b:
                assert sum((p - q) ** 2 for p, q in zip(seen[a], seen[b], strict=True)) ** 0.5 >= 20, (a, b)


def test_kinds_differ_in_lightness_and_letters_can_be_read() -> None:
    ladder = (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
    light = [_lab(_linear(FILL[kind]))[0] for kind in ladder]
    assert all(b - a >= 6 for a, b in itertools.pairwise(light)), light
    for kind in Kind:
        dark, bright = sorted(_times([[0.2126, 0.7152, 0.0722]], _linear(c[kind]))[0] for c in (FILL, TEXT))
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, kind
