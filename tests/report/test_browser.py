"""The page in a real browser: no complaint, and everything that can be pointed at, pressed and touched.

Nothing here looks at the clock: how much work a frame is, is counted.
"""

from __future__ import annotations

import random

import pytest

from tests.browser import find_browser, open_browser
from tests.report.pages import hostile, large, two
from tests.strategies import random_order
from zbsolve.analysis.network import Network
from zbsolve.analysis.slack import slacks
from zbsolve.catalog import baseline
from zbsolve.draw.report import Entry, render_report
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Profile, StageCost
from zbsolve.simulate import simulate

pytestmark = [
    pytest.mark.skipif(find_browser() is None, reason="no Chromium here: apt-get install chromium, and these run"),
    pytest.mark.xdist_group("browser"),
]


@pytest.fixture(scope="module")
def browser():
    with open_browser() as running:
        yield running


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Files by name, written once."""
    folder = tmp_path_factory.mktemp("reports")

    def put(name, entries):
        path = folder / f"{name}.html"
        path.write_bytes(render_report(entries))
        return path

    return put


@pytest.fixture(scope="module")
def plain(browser, reports):
    page = browser.open(reports("two", two()))
    yield page
    page.close()


@pytest.fixture
def fresh(plain):
    """The page of two timetables as it was at first."""
    plain.js("window.scrollTo(0, 0)")
    for table in (0, 1):
        plain.js(f"document.querySelectorAll('.timeline canvas')[{table}].focus()")
        plain.key("Escape")
    plain.key("f")
    plain.js("document.querySelector('[data-theme-choice=auto]').click()")
    return plain


def card(page):
    return page.js("document.getElementById('card').hidden ? '' : document.getElementById('card').innerText")


def span(page):
    return page.js("(v => v.to - v.from)(zbsolve.view())")


def test_it_loads_with_nothing_to_complain_of_and_asks_for_nothing_else(fresh):
    assert fresh.complaints == []
    assert [address for address in fresh.requests if not address.startswith("data:")] == fresh.requests[:1]
    assert fresh.js("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert fresh.js("zbsolve.marks().rects") > 30


def test_it_has_what_the_timetables_say(fresh):
    for number, entry in enumerate(two()):
        network = Network.of(entry.timetable)
        nodes = [node for row in network.rows for node in row.tolist()]
        slack = slacks(network)
        for op, node in enumerate(nodes):
            seen = fresh.js(f"zbsolve.operation({number}, {op})")
            assert seen["name"] == str(network.op(node))
            assert (seen["rank"], seen["start"], seen["end"]) == (
                network.rank(node),
                network.start(node),
                network.end(node),
            )
            assert seen["slack"] == slack[node]
            data = sorted(
                (-network.end(e.tail) - e.lag_ns, nodes.index(e.tail)) for e in network.edges[node] if not e.in_row
            )
            assert sorted((-arrival, tail) for tail, arrival in seen["inputs"]) == data


def test_the_mouse_shows_an_operation_and_a_click_keeps_it(fresh):
    at = fresh.js("zbsolve.place(1, 6)")
    fresh.move(at["x"], at["y"])
    fresh.drawn()
    name = fresh.js("zbsolve.operation(1, 6).name")
    assert card(fresh).startswith(name)
    for fact in ("waited for", "slack", "memory", "takes"):
        assert fact in card(fresh)
    fresh.move(5, 5)
    fresh.drawn()
    assert card(fresh) == ""
    fresh.click(at["x"], at["y"])
    assert fresh.js("zbsolve.selected()") == {"table": 1, "op": 6}
    fresh.move(5, 5)
    fresh.drawn()
    assert card(fresh).startswith(name)


def test_idle_time_tells_its_cause(fresh):
    gap = fresh.js(
        "(() => { const a = zbsolve.place(0, 2), b = zbsolve.place(0, 3); return { x: (a.x + b.x) / 2, y: a.y }; })()"
    )
    fresh.move(gap["x"], gap["y"])
    fresh.drawn()
    assert card(fresh).startswith("Rank 0 idles")
    assert "cause" in card(fresh)


def test_the_wheel_zooms_at_the_pointer_and_only_when_asked(fresh):
    at = fresh.js("zbsolve.place(0, 4)")
    before = span(fresh)
    fresh.wheel(at["x"], at["y"], -200)
    assert span(fresh) == before
    fresh.js("window.scrollTo(0, 0)")
    fresh.wheel(at["x"], at["y"], -200, ctrl=True)
    assert span(fresh) < before * 0.8
    assert fresh.js("zbsolve.place(0, 4)")["x"] == pytest.approx(at["x"], abs=1)
    ruler = fresh.js(
        "(r => ({ x: r.left + 300, y: r.top + 30 }))(document.getElementById('ruler').getBoundingClientRect())"
    )
    zoomed = span(fresh)
    fresh.wheel(ruler["x"], ruler["y"], 120)
    assert span(fresh) > zoomed


def test_dragging_pans(fresh):
    fresh.js("document.getElementById('zoom-in').click()")
    fresh.js("document.getElementById('zoom-in').click()")
    fresh.drawn()
    at, view = fresh.js("zbsolve.place(0, 3)"), fresh.js("zbsolve.view()")
    y = fresh.js("zbsolve.place(0, 0).y")
    fresh.drag((700, y), (640, y))
    moved = fresh.js("zbsolve.view()")
    assert moved["from"] > view["from"]
    assert moved["to"] - moved["from"] == pytest.approx(view["to"] - view["from"])
    assert fresh.js("zbsolve.place(0, 3)")["x"] == pytest.approx(at["x"] - 60, abs=1)
    assert fresh.js("zbsolve.selected()") is None


def test_the_keyboard_reaches_everything(fresh):
    fresh.js("document.querySelector('.timeline canvas').focus()")
    fresh.key("ArrowRight")
    assert fresh.js("zbsolve.selected()") == {"table": 0, "op": 0}
    fresh.key("ArrowRight")
    assert fresh.js("zbsolve.selected().op") == 1
    spoken = fresh.js("document.getElementById('spoken').textContent")
    assert spoken.startswith(fresh.js("zbsolve.operation(0, 1).name"))
    assert "slack" in spoken
    fresh.key("ArrowDown")
    below = fresh.js("zbsolve.selected().op")
    assert fresh.js(f"zbsolve.operation(0, {below}).rank") == 1
    waited = fresh.js(f"zbsolve.operation(0, {below}).inputs")[0][0]
    fresh.key("i")
    assert fresh.js("zbsolve.selected().op") == waited
    fresh.key("c")
    assert fresh.js(f"zbsolve.operation(0, {fresh.js('zbsolve.selected().op')}).slack") == 0
    whole = span(fresh)
    fresh.key("+")
    assert span(fresh) < whole
    fresh.key("f")
    assert span(fresh) == whole
    fresh.key("End")
    assert fresh.js("zbsolve.operation(0, zbsolve.selected().op).rank") >= 0
    fresh.key("Escape")
    assert card(fresh) == ""


def test_bubbles_lead_to_their_place(fresh):
    whole = span(fresh)
    fresh.js("document.querySelector('[data-bubble]').click()")
    fresh.drawn()
    assert span(fresh) < whole
    assert card(fresh).startswith("Rank")


def test_all_ways_of_colouring_draw(fresh):
    frames = fresh.js("zbsolve.frames()")
    for name in ("critical", "causes", "memory"):
        fresh.js(f"document.getElementById('show-{name}').click()")
    fresh.js(
        "(s => { s.value = 'microbatch'; s.dispatchEvent(new Event('change')); })(document.getElementById('colour-by'))"
    )
    fresh.drawn()
    assert fresh.js("zbsolve.frames()") > frames
    assert "microbatch" in fresh.js("document.getElementById('legend').innerText")
    fresh.js("(s => { s.value = 'kind'; s.dispatchEvent(new Event('change')); })(document.getElementById('colour-by'))")
    for name in ("critical", "causes", "memory"):
        fresh.js(f"document.getElementById('show-{name}').click()")
    assert fresh.complaints == []


def test_the_theme_follows_the_system_unless_chosen(fresh):
    def background():
        return fresh.js("getComputedStyle(document.body).backgroundColor")

    light = background()
    fresh.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    fresh.drawn()
    dark = background()
    assert dark != light
    fresh.js("document.querySelector('[data-theme-choice=light]').click()")
    assert background() == light
    fresh.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    fresh.js("document.querySelector('[data-theme-choice=dark]').click()")
    assert background() == dark


def test_it_prints_light_and_whole_and_goes_back(fresh):
    fresh.js("document.querySelector('[data-theme-choice=dark]').click()")
    fresh.js("document.getElementById('zoom-in').click()")
    fresh.drawn()
    zoomed = span(fresh)
    look = "seen.push([document.documentElement.dataset.theme, zbsolve.view().to - zbsolve.view().from])"
    fresh.js(f"window.seen = []; addEventListener('beforeprint', () => {look})")
    assert fresh.pdf().startswith(b"%PDF")
    theme, printed = fresh.js("seen[0]")
    assert theme == "light"
    assert printed > zoomed
    fresh.drawn()
    assert fresh.js("document.documentElement.dataset.theme") == "dark"
    assert span(fresh) == zoomed


def test_touch_taps_pans_and_pinches_on_a_phone(browser, reports):
    page = browser.open(reports("phone", two()), width=390, height=844, scale=2)
    page.call("Emulation.setTouchEmulationEnabled", enabled=True)
    assert page.js("document.documentElement.scrollWidth") <= 390
    page.js("document.querySelector('.timeline canvas').scrollIntoView({ block: 'center', behavior: 'instant' })")
    page.drawn()
    at = page.js("zbsolve.place(0, 3)")
    page.touch("touchStart", (at["x"], at["y"]))
    page.touch("touchEnd")
    page.drawn()
    assert page.js("zbsolve.selected()") == {"table": 0, "op": 3}
    assert card(page).startswith(page.js("zbsolve.operation(0, 3).name"))
    whole, y = span(page), at["y"]
    page.touch("touchStart", (180, y), (220, y))
    for apart in (40, 70, 100):
        page.touch("touchMove", (200 - apart, y), (200 + apart, y))
    page.touch("touchEnd")
    page.drawn()
    assert span(page) < whole * 0.6
    before = page.js("zbsolve.view().from")
    page.touch("touchStart", (250, y))
    for x in (230, 200, 160):
        page.touch("touchMove", (x, y))
    page.touch("touchEnd")
    page.drawn()
    assert page.js("zbsolve.view().from") > before
    assert page.complaints == []
    page.close()


def test_hostile_names_stay_names(browser, reports):
    page = browser.open(reports("hostile", hostile()))
    assert page.js("window.owned === undefined")
    assert page.complaints == []
    assert page.js("document.querySelectorAll('script').length") == 2
    assert page.js("document.querySelectorAll('img, iframe, svg[onload]').length") == 0
    assert page.js("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.js("document.querySelector('.timeline canvas').focus()")
    page.key("ArrowRight")
    assert "</script><script>window.owned = 1</script>" in card(page)
    assert "</script><script>window.owned = 1</script>" in page.js("document.querySelector('h3').innerText")
    page.close()


def test_25_000_operations_are_few_marks_a_frame(browser, reports):
    page = browser.open(reports("large", [Entry("large", large(25_000))]))
    marks, width = page.js("zbsolve.marks()"), page.js("zbsolve.width()")
    # the whole: each operation looked at once, and its two changes of memory; drawn: a few marks a pixel and rank
    assert marks["scanned"] <= 3 * 25_200
    assert marks["rects"] <= 3 * 8 * width
    page.js("document.querySelector('.timeline canvas').focus()")
    for key in ["Home", *["+"] * 12]:
        page.key(key)
    near = page.js("zbsolve.marks()")
    assert near["scanned"] < 2_000
    assert near["labels"] > 0
    assert page.complaints == []
    page.close()


def test_placements_of_every_sort_are_drawn(browser, reports):
    entries = []
    for placement in (Placement.v(2), Placement.looped(2, 3), Placement.bidirectional(2), Placement.linear(70)):
        rng = random.Random(placement.stages)
        stages = tuple(
            StageCost(
                forward_ns=rng.randint(1, 9),
                backward_input_ns=0,
                backward_weight_ns=rng.randint(0, 5),
                activation_bytes=2,
            )
            for _ in range(placement.stages)
        )
        asked = Problem(
            profile=Profile(stages=stages, link=Link(latency_ns=1)),
            placement=placement,
            microbatches=2,
            objective="makespan",
        )
        order = baseline("1f1b", asked) if placement.ranks == 70 else random_order(asked, 0, fused=0.2)
        entries.append(Entry(placement.name, simulate(asked, order)))
    page = browser.open(reports("placements", entries))
    assert page.complaints == []
    for table in range(len(entries)):
        page.js(f"document.querySelectorAll('.timeline canvas')[{table}].focus()")
        for key in ("ArrowRight", "ArrowDown", "ArrowDown", "i", "c", "End", "+", "Escape", "f"):
            page.key(key)
    assert page.complaints == []
    page.close()
