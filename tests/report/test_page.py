"""The page as text: self-contained, its data true, and names from files nothing but text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawn import one_f_one_b, problem
from tests.report.pages import HOSTILE, data, hostile, large, page, two
from tests.strategies import orders, problems, random_order
from zbsolve.analysis.idle import Cause
from zbsolve.draw import colours
from zbsolve.draw.report import MOST_TIMETABLES, Entry, render_report, write_report
from zbsolve.draw.report.page import json_for_html
from zbsolve.errors import InvalidInput, OrderError
from zbsolve.ops import Kind
from zbsolve.placement import Placement
from zbsolve.simulate import simulate
from zbsolve.timetable import Timetable

VOID = {"meta", "link", "br", "input", "rect"}


class Reader(HTMLParser):
    """Tags with their attributes, texts, and whether every tag is closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.texts.append(text)


def test_a_page_is_self_contained():
    text = page(two())
    reader = Reader(text)
    assert reader.open == []
    assert "://" not in text
    for tag, attributes in reader.tags:
        assert tag not in {"iframe", "object", "embed", "base", "form"}
        assert not {name for name in attributes if name.startswith("on")}
        assert "style" not in attributes  # the policy would refuse it
        for name in ("href", "src"):
            assert attributes.get(name, "#").startswith(("#", "data:,"))
    assert "url(" not in text
    assert "@import" not in text


def test_the_policy_lets_only_these_scripts_and_styles_in():
    text = page(two())
    policy = next(a["content"] for t, a in Reader(text).tags if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for name, tag in (("script-src", "script"), ("style-src", "style")):
        inlined = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert len(inlined) == 1
        digest = base64.b64encode(hashlib.sha256(inlined[0].encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    assert {"base-uri", "form-action"} <= set(rules)


def test_the_same_bytes_for_the_same_timetables():
    assert render_report(two()) == render_report(two())


def test_names_are_text_and_nothing_else():
    plain = Reader(page([Entry("plain", entry.timetable) for entry in two()] * 3 + two()[:1]))
    reader = Reader(page(hostile()))
    assert reader.open == []
    assert {tag for tag, _ in reader.tags} <= {tag for tag, _ in plain.tags} | {"br"}
    assert [tag for tag, _ in reader.tags].count("script") == 2
    assert not {name for _, attributes in reader.tags for name in attributes if name.startswith("on")}
    shown = "".join(reader.texts)
    for name in HOSTILE[:5]:
        assert name in shown
    assert "\u202e" not in shown
    assert "\x1b" not in shown


@given(st.text() | st.sampled_from(HOSTILE))
def test_json_ends_no_script_and_comes_back(text):
    written = json_for_html({"name": text})
    assert written.isascii()
    assert not set("<>&") & set(written)
    assert json.loads(written) == {"name": text}


@settings(max_examples=30)
@given(st.data())
def test_the_columns_give_back_the_timetable(chosen):
    asked = chosen.draw(problems(most_microbatches=3, limits=True, variants=True))
    table = simulate(asked, chosen.draw(orders(asked)))
    shown = data(page([Entry("t", table)]))
    kinds = [kind[0] for kind in shown["kinds"]]
    columns = shown["tables"][0]
    at = inputs = 0
    for rank, row in enumerate(table.rows):
        assert columns["starts"][rank + 1] - columns["starts"][rank] == len(row)
        free = 0
        for timed in row:
            kind, stage, _, duration, *_ = columns["classes"][columns["class"][at]]
            start = free + columns["gap"][at]
            assert (kinds[kind], stage, columns["microbatch"][at]) == (
                timed.op.letters,
                timed.op.stage,
                -1 if timed.op.microbatch is None else timed.op.microbatch,
            )
            assert (start, start + duration) == (timed.start_ns, timed.end_ns)
            inputs += 1 + 2 * columns["inputs"][inputs]
            free, at = timed.end_ns, at + 1
    assert inputs == len(columns["inputs"])
    assert columns["value"] == (table.period_ns if asked.objective == "period" else table.makespan_ns)


def test_many_operations_stay_far_below_five_megabytes():
    table = large(25_000)
    assert sum(map(len, table.rows)) >= 25_000
    assert len(render_report([Entry("large", table)])) < 2_500_000


def test_what_cannot_be_reported_is_refused(tmp_path):
    table = one_f_one_b(problem())
    with pytest.raises(InvalidInput, match="at least one"):
        render_report([])
    with pytest.raises(InvalidInput, match="at most"):
        render_report([Entry("t", table)] * (MOST_TIMETABLES + 1))
    with pytest.raises(OrderError):
        render_report([Entry("t", Timetable(problem=table.problem, rows=tuple(row[:-1] for row in table.rows)))])
    with pytest.raises(InvalidInput, match="cannot be written"):
        write_report([("t", table)], tmp_path / "absent" / "r.html")
    assert write_report([("t", table)], tmp_path / "r.html").read_bytes() == render_report([Entry("t", table)])


def test_ranks_without_operations_and_titles_without_letters_are_shown():
    asked = problem(4, 1, placement=Placement.custom((0, 1), (2, 3)), route_of=(0,))
    text = page([Entry("", simulate(asked, random_order(asked, 0)))])
    assert Reader(text).open == []
    assert "untitled" in text


# Machado, Oliveira and Fernandes (2009), severity 1.0
SIGHT = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def linear(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]


def lab(colour, sight):
    seen = [min(1.0, max(0.0, sum(m * c for m, c in zip(row, linear(colour), strict=True)))) for row in SIGHT[sight]]
    xyz = [
        (0.4124 * seen[0] + 0.3576 * seen[1] + 0.1805 * seen[2]) / 0.95047,
        0.2126 * seen[0] + 0.7152 * seen[1] + 0.0722 * seen[2],
        (0.0193 * seen[0] + 0.1192 * seen[1] + 0.9505 * seen[2]) / 1.08883,
    ]
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def luminance(colour):
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


FOUR = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.BACKWARD)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("dark", [False, True])
def test_colours_stay_apart_for_all_eyes(sight, dark):
    fills = [(colours.FILL_DARK if dark else colours.FILL)[kind] for kind in FOUR]
    for n, a in enumerate(fills):
        for b in fills[n + 1 :]:
            assert sum((p - q) ** 2 for p, q in zip(lab(a, sight), lab(b, sight), strict=True)) ** 0.5 >= 20
    told = [pair[dark] for cause, pair in colours.CAUSE.items() if cause is not Cause.DONE]  # which looks like pace
    for n, a in enumerate(told):
        for b in told[n + 1 :]:
            assert sum((p - q) ** 2 for p, q in zip(lab(a, sight), lab(b, sight), strict=True)) ** 0.5 >= 12


def test_labels_and_boxes_have_contrast_on_both_pages():
    for kind in FOUR:
        assert contrast(colours.FILL[kind], colours.TEXT[kind]) >= 4.5
        assert contrast(colours.FILL_DARK[kind], colours.INK) >= 4.5
        assert contrast(colours.FILL_DARK[kind], "#161d24") >= 3


def test_the_ramp_of_microbatches_gets_steadily_lighter():
    text = page(two())
    ramp = re.findall(r"#[0-9a-f]{6}", re.search(r"const RAMP = \[(.*?)\]", text)[1])
    assert len(ramp) == 9
    assert all(luminance(a) < luminance(b) for a, b in pairwise(ramp))
