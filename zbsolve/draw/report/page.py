"""The HTML of a report: what can be read without scripts, and the scripts with their data."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from zbsolve.analysis.idle import Cause, by_cause
from zbsolve.analysis.words import MEANING
from zbsolve.draw import colours
from zbsolve.draw.panel import clean
from zbsolve.draw.report.payload import Section, payload
from zbsolve.units import counted, format_bytes, format_ns

__all__ = ["html", "json_for_html"]

SCRIPTS = ("words.js", "model.js", "palette.js", "paint.js", "view.js", "card.js", "main.js")

MOST_PATH_LINES = 60
MOST_RANK_BARS = 128


def html(sections: Sequence[Section]) -> bytes:
    """The whole page."""
    style = _asset("style.css") + _cause_styles()
    script = "(() => {\n'use strict';\n" + "\n".join(_asset(name) for name in SCRIPTS) + "\n})();\n"
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    titles = ", ".join(s.title for s in sections)
    parts = {
        "POLICY": escape(policy),
        "TITLE": escape(f"{titles} - zbsolve report" if titles.strip(", ") else "zbsolve report"),
        "STYLE": style,
        "ABOUT": _about(sections),
        "COMPARISON": _comparison(sections),
        "TIMELINES": "\n".join(_timeline(n, s) for n, s in enumerate(sections)),
        "STORIES": "\n".join(_story(n, s) for n, s in enumerate(sections)),
        "DATA": json_for_html(payload(list(sections))),
        "SCRIPT": script,
    }
    page = _asset("page.html")
    pieces = page.split("@@")  # the template's places are @@NAME@@; what fills them is never searched again
    return "".join(parts[piece] if at % 2 else piece for at, piece in enumerate(pieces)).encode()


def json_for_html(value: Any) -> str:
    """JSON that no HTML parser can see an end of script, a comment or an entity in; pure ASCII."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files("zbsolve.draw.report").joinpath("page", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _cause_styles() -> str:
    light = "".join(f".cause-{cause.value}{{--cause:{day}}}" for cause, (day, _) in colours.CAUSE.items())
    dark = "".join(
        f':root[data-theme="dark"] .cause-{c.value}{{--cause:{night}}}' for c, (_, night) in colours.CAUSE.items()
    )
    return f"{light}\n@media screen{{{dark}}}\n"


def _about(sections: Sequence[Section]) -> str:
    """What was asked, once where all timetables answer the same."""
    asked = list(dict.fromkeys(_asked(s) for s in sections))
    return "<br>".join(escape(line) for line in asked[:4]) + ("<br>..." if len(asked) > 4 else "")


def _asked(shown: Section) -> str:
    problem = shown.told.network.timetable.problem
    name = f"{clean(problem.profile.name)}: " if problem.profile.name else ""
    stages, ranks = counted(problem.placement.stages, "stage"), counted(problem.placement.ranks, "rank")
    return f"{name}{problem.microbatches_in_words}, {stages} on {ranks} ({problem.placement.name})"


def _limit(shown: Section) -> str:
    limits = shown.told.network.timetable.problem.limit_bytes
    known = [limit for limit in limits if limit is not None]
    if not known:
        return "unlimited"
    if len(known) == len(limits) and min(known) == max(known):
        return format_bytes(known[0])
    return f"{format_bytes(min(known))} to " + (format_bytes(max(known)) if len(known) == len(limits) else "unlimited")


def _comparison(sections: Sequence[Section]) -> str:
    heads = ("timetable", "period", "makespan", "bubble", "peak memory", "limit", "fits", "lower bound", "gap")
    best = min(_value(s) for s in sections)
    alike = len({s.told.network.timetable.problem.digest for s in sections}) == 1
    told_apart = alike and best < max(_value(s) for s in sections)
    lines = []
    for number, shown in enumerate(sections):
        figures, proof = shown.told.metrics, shown.told.proof
        bound = "none" if proof.bound is None else format_ns(proof.bound.value_ns)
        gap = "-" if proof.gap is None or not shown.fits else f"{100 * proof.gap:.2f} %"
        cells = [
            f'<th scope="row"><a href="#timetable-{number}">{escape(shown.title) or "untitled"}</a></th>',
            *(
                f"<td>{escape(text)}</td>"
                for text in (
                    format_ns(figures.period_ns),
                    format_ns(figures.makespan_ns),
                    f"{100 * figures.bubble:.2f} %",
                    format_bytes(max(figures.peak_bytes, default=0)),
                    _limit(shown),
                    "yes" if shown.fits else "no",
                    bound,
                    gap,
                )
            ),
        ]
        mark = ' class="best"' if told_apart and _value(shown) == best else ""
        lines.append(f"<tr{mark}>{''.join(cells)}</tr>")
    formulas = dict.fromkeys(s.told.metrics.bubble_formula for s in sections)
    notes = [*(f"bubble = {formula}" for formula in formulas), "gap = value / bound - 1"]
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return (
        f'<div class="scroll"><table class="comparison"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
        f'<p class="note">{escape("; ".join(notes))}. All bounds are proven.</p>'
    )


def _value(shown: Section) -> int:
    return shown.told.network.value_ns


def _timeline(number: int, shown: Section) -> str:
    told = shown.told
    problem = told.network.timetable.problem
    proof = told.proof
    chips = [
        f"{problem.objective} <b>{format_ns(_value(shown))}</b>",
        f"bubble <b>{100 * told.metrics.bubble:.2f} %</b>",
    ]
    if proof.gap is not None and shown.fits:
        optimal = proof.bound is not None and proof.bound.value_ns == _value(shown)
        chips.append('<b class="optimal">proven optimal</b>' if optimal else f"gap <b>{100 * proof.gap:.2f} %</b>")
    label = f"Timeline of {shown.title}: arrow keys walk through its operations, plus and minus zoom, F fits"
    return (
        f'<section class="timeline" id="timetable-{number}" aria-label="{escape(shown.title)}">'
        f'<header><h3>{escape(shown.title) or "untitled"}</h3><p class="chips">'
        f"{''.join(f'<span>{chip}</span>' for chip in chips)}</p></header>"
        f'<canvas tabindex="0" role="application" aria-label="{escape(label)}" data-table="{number}"></canvas>'
        "</section>"
    )


def _story(number: int, shown: Section) -> str:
    told = shown.told
    name = "Critical cycle" if told.network.by_period else "Critical path"
    return (
        f'<section class="story"><h3>{escape(shown.title) or "untitled"}</h3>'
        f'<div class="cards"><article><h4>Idle time by cause</h4>{_causes(told.network.ranks, shown)}</article>'
        f"<article><h4>What holds it back</h4>{_proof(shown)}"
        f"<h4>{name}</h4>{_path(shown)}</article>"
        f'<article class="wide"><h4>Largest bubbles</h4>{_bubbles(number, shown)}</article></div></section>'
    )


def _proof(shown: Section) -> str:
    proof, value = shown.told.proof, _value(shown)
    if proof.bound is None:
        return f"<p>{escape(proof.meaning)}.</p>"
    bound = proof.bound
    objective = shown.told.network.timetable.problem.objective
    source = (
        "as its solver recorded; <code>zbsolve check --bound</code> proves it anew"
        if proof.recorded
        else "proven for this page"
    )
    if not shown.fits:
        verdict = "It does not keep the memory limit, for which the bound holds."
    elif bound.value_ns == value:
        verdict = f"The {objective} meets its bound: <b>no timetable is better.</b>"
    else:
        gap = "" if proof.gap is None else f", {100 * proof.gap:.2f} % above"
        verdict = f"The {objective} is {format_ns(value - bound.value_ns)}{gap}: so much could be left at most."
    share = 100 * bound.value_ns / value if value else 100
    bar = (
        '<svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="4"/><rect class="bound" width="{share:.2f}" height="4"/></svg>'
    )
    return (
        f"<p>No timetable takes less than <b>{format_ns(bound.value_ns)}</b>, by "
        f"<b>{escape(bound.name)}</b>: {escape(proof.meaning)}. {verdict}</p>{bar}"
        f'<p class="note">The bound is {source}.</p>'
    )


def _causes(ranks: int, shown: Section) -> str:
    told, value = shown.told, _value(shown)
    total = sum(told.causes.values())
    if not total:
        return "<p>No rank idles.</p>"
    lines = []
    for rank in range(min(ranks, MOST_RANK_BARS)):
        causes = by_cause(told.idle, rank)
        at, boxes = 0.0, []
        for cause, ns in causes.items():
            width = 100 * ns / value if value else 0.0
            boxes.append(f'<rect class="cause-{cause.value}" x="{at:.3f}" width="{width:.3f}" height="10"/>')
            at += width
        said = ", ".join(f"{cause.value} {format_ns(ns)}" for cause, ns in causes.items()) or "none"
        lines.append(
            f'<tr><th scope="row">rank {rank}</th><td><svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" '
            f'role="img" aria-label="{said}"><title>{said}</title><rect class="track" width="100" height="10"/>'
            f"{''.join(boxes)}</svg></td><td>{100 * sum(causes.values()) / value if value else 0:.1f} %</td></tr>"
        )
    legend = "".join(
        f'<tr class="cause-{cause.value}"><th scope="row"><i></i>{cause.value}</th><td>{format_ns(ns)}</td>'
        f"<td>{100 * ns / total:.1f} %</td><td>{escape(MEANING[cause])}</td></tr>"
        for cause, ns in told.causes.items()
        if isinstance(cause, Cause)
    )
    return (
        f'<table class="ranks"><tbody>{"".join(lines)}</tbody></table>'
        f'<div class="scroll"><table class="causes"><tbody>{legend}'
        f'<tr class="sum"><th scope="row">all</th><td>{format_ns(total)}</td><td></td><td>over all ranks</td></tr>'
        "</tbody></table></div>"
    )


def _path(shown: Section) -> str:
    told = shown.told
    over = f" over {told.path.iterations} iterations" if told.path.iterations > 1 else ""
    wraps = "; it begins again when it ends" if told.network.by_period else ""
    lines = told.path_text[:MOST_PATH_LINES]
    rest = len(told.path_text) - len(lines)
    more = f"<li>... and {counted(rest, 'more stretch')}</li>" if rest else ""
    return (
        f"<p>{counted(len(told.path.steps), 'operation')}, {format_ns(told.path.length_ns)}{over}{wraps}.</p>"
        f'<ol class="path">{"".join(f"<li>{escape(line)}</li>" for line in lines)}{more}</ol>'
    )


def _bubbles(number: int, shown: Section) -> str:
    if not shown.told.bubbles:
        return "<p>No rank idles.</p>"
    lines = []
    for at, bubble in enumerate(shown.told.bubbles):
        longest = max(bubble.pieces, key=lambda piece: piece.length_ns)
        lines.append(
            f'<li class="cause-{longest.cause.value}"><button type="button" data-table="{number}" data-bubble="{at}">'
            f"<i></i>{escape(bubble.text)}</button></li>"
        )
    return f'<ol class="bubbles">{"".join(lines)}</ol>'
