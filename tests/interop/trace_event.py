"""The trace-event format, as far as it is used, written down: a schema, and rules that no schema can say.

From the document "Trace Event Format": complete (X), counter (C), flow (s, f) and metadata (M) events in
the JSON object format, and what Perfetto's importer asks of them beyond it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from typing import Any

import jsonschema

NUMBER, INTEGER, TEXT = {"type": "number"}, {"type": "integer"}, {"type": "string", "minLength": 1}


def _event(required: list[str], **properties: Any) -> dict[str, Any]:
    base = {"name": TEXT, "pid": INTEGER, "tid": INTEGER, "ts": NUMBER}
    return {
        "type": "object",
        "properties": base | properties,
        "required": ["ph", "name", "pid", "tid", "ts", *required],
        "additionalProperties": False,
    }


def _meta(name: str, field: str, value: Any) -> dict[str, Any]:
    args = {"type": "object", "properties": {field: value}, "required": [field], "additionalProperties": False}
    return _event(["args"], ph={"const": "M"}, name={"const": name}, args=args)


NAMES = {
    "process_name": ("name", TEXT),
    "process_labels": ("labels", TEXT),
    "process_sort_index": ("sort_index", INTEGER),
    "thread_name": ("name", TEXT),
    "thread_sort_index": ("sort_index", INTEGER),
}

COUNTED = {"type": "object", "minProperties": 1, "additionalProperties": NUMBER}
LENGTH = {"type": "number", "minimum": 0}

EVENTS = {
    "X": _event(["dur", "cat"], ph={"const": "X"}, cat=TEXT, args={"type": "object"}, dur=LENGTH),
    "C": _event(["args"], ph={"const": "C"}, args=COUNTED),
    "s": _event(["id", "cat"], ph={"const": "s"}, cat=TEXT, id=INTEGER),
    "f": _event(["id", "cat", "bp"], ph={"const": "f"}, cat=TEXT, id=INTEGER, bp={"const": "e"}),
    **{f"M {name}": _meta(name, *field) for name, field in NAMES.items()},
}

FILE = {
    "type": "object",
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {"type": "array"},
    },
    "required": ["traceEvents"],
    "additionalProperties": False,
}

CHECKS = {key: jsonschema.Draft202012Validator(schema) for key, schema in EVENTS.items()}


def ns(us: Decimal | int) -> int:
    """A time of the format in whole ns; it must be one."""
    value = Decimal(us) * 1000
    assert value == int(value), us
    return int(value)


def validated(data: bytes) -> list[dict[str, Any]]:
    """The events of a file that keeps to the format."""
    tree = json.loads(data)
    jsonschema.validate(tree, FILE)
    for event in tree["traceEvents"]:
        CHECKS[event["ph"] if event["ph"] != "M" else f"M {event['name']}"].validate(event)
    events: list[dict[str, Any]] = json.loads(data, parse_float=Decimal)["traceEvents"]
    slices: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    counters: dict[tuple[int, str], list[int]] = defaultdict(list)
    flows: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = defaultdict(dict)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = [e["pid"] for e in events if e["name"] == "process_name"]
    assert len(processes) == len(set(processes))
    for event in events:
        assert event["pid"] in processes
        if event["ph"] == "X":
            assert (event["pid"], event["tid"]) in named
            slices[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])))
        elif event["ph"] == "C":
            counters[event["pid"], event["name"]].append(ns(event["ts"]))
        elif event["ph"] in "sf":
            ends = flows[event["cat"], event["name"], event["id"]]
            assert event["ph"] not in ends, "an id joins two events"
            ends[event["ph"]] = event
    for row in slices.values():
        assert all(a[1] <= b[0] for a, b in pairwise(sorted(row))), "slices of one thread overlap"
    for times in counters.values():
        assert all(a < b for a, b in pairwise(times)), "a counter goes back in time"
    for ends in flows.values():
        assert set(ends) == {"s", "f"}
        assert ns(ends["s"]["ts"]) <= ns(ends["f"]["ts"])
        for end in ends.values():  # an arrow binds to the slice that encloses it on its thread
            at = ns(end["ts"])
            assert any(a <= at < max(b, a + 1) for a, b in slices[end["pid"], end["tid"]]), "an arrow ends nowhere"
    return events
