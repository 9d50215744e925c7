"""One palette for every picture: the kinds of operations, idle time, memory.

Blue, orange, green and vermilion stay apart in normal sight and under protanopia, deuteranopia and
tritanopia (CIE76 distance of at least 20 after Machado's simulation), and their lightness descends
W, B, BW, F, so a grey print keeps them apart too. Every label stands on its box with a contrast of
at least 4.5 : 1 (WCAG AA); on a dark page boxes are lighter and all their labels dark. Colour is
never the only cue: boxes carry letters, idle time is hatched.
"""

from __future__ import annotations

from zbsolve.analysis.idle import Cause
from zbsolve.ops import Kind

__all__ = [
    "CAUSE",
    "FILL",
    "FILL_DARK",
    "GRID",
    "IDLE",
    "IDLE_HATCH",
    "INK",
    "LIMIT",
    "MEANING",
    "MEMORY",
    "MUTED",
    "STATIC",
    "TEXT",
    "TOGETHER",
]

FILL = {
    Kind.FORWARD: "#0B5FA5",
    Kind.BACKWARD_INPUT: "#F0A30A",
    Kind.BACKWARD_WEIGHT: "#A3DFC2",
    Kind.BACKWARD: "#BD4B2C",
    Kind.RECOMPUTE: "#5A99F6",
    Kind.OFFLOAD: "#7309CB",
    Kind.RELEASE: "#F1F7A7",
    Kind.RELOAD: "#9A5873",
    Kind.REDUCE_GRADIENT: "#C9A3D4",
    Kind.OPTIMIZER: "#2B2B2B",
}
"""The colour of each kind's boxes."""

FILL_DARK = {
    Kind.FORWARD: "#3F8FDB",
    Kind.BACKWARD_INPUT: "#F2B134",
    Kind.BACKWARD_WEIGHT: "#B5EBD0",
    Kind.BACKWARD: "#DE6B4A",
}
"""The same on a dark page; a kind that is not here has its colour of `FILL`."""

TEXT = {
    Kind.FORWARD: "#FFFFFF",
    Kind.BACKWARD_INPUT: "#1A1A1A",
    Kind.BACKWARD_WEIGHT: "#1A1A1A",
    Kind.BACKWARD: "#FFFFFF",
    Kind.RECOMPUTE: "#1A1A1A",
    Kind.OFFLOAD: "#FFFFFF",
    Kind.RELEASE: "#1A1A1A",
    Kind.RELOAD: "#FFFFFF",
    Kind.REDUCE_GRADIENT: "#1A1A1A",
    Kind.OPTIMIZER: "#FFFFFF",
}
"""The colour of the letters on them."""

MEANING = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD_INPUT: "backward, input gradient",
    Kind.BACKWARD_WEIGHT: "backward, weight gradient",
    Kind.BACKWARD: "backward, both in one",
    Kind.RECOMPUTE: "forward, computed again",
    Kind.OFFLOAD: "copy to host memory, beside the computing",
    Kind.RELEASE: "memory of what was copied let go of",
    Kind.RELOAD: "copy back from host memory, beside the computing",
    Kind.REDUCE_GRADIENT: "reduction of gradients, beside the computing",
    Kind.OPTIMIZER: "optimizer",
}
"""What a legend says beside each letter."""

TOGETHER = ("#7A3E9D", "#FFFFFF", "#A874CC", "#1A1A1A")
"""Where one box stands for a forward and a backward together: fill and letters, and the same on a dark page."""

IDLE = "#F1F1F1"
IDLE_HATCH = "#C4C4C4"
INK = "#1A1A1A"
MUTED = "#5A5A5A"
GRID = "#D9D9D9"
MEMORY = "#8C9BB0"
STATIC = "#5D6B80"
LIMIT = "#A50F2D"

CAUSE = {
    Cause.DATA: ("#8FA3B8", "#6C8097"),
    Cause.QUEUE: ("#003C5A", "#E8925A"),
    Cause.LINK: ("#2A9D8F", "#3DBFAF"),
    Cause.MEMORY: ("#B3123B", "#F2506E"),
    Cause.ORDER: ("#7B4FB5", "#B79BFF"),
    Cause.LATE: ("#9A7400", "#D9B23A"),
    Cause.PACE: ("#C3CCD6", "#3A4654"),
    Cause.DONE: ("#DCE2E8", "#2B3541"),
}
"""The colour of each cause of idle time, on a light and on a dark page."""
