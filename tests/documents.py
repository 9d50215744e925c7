"""What stands in fences of our documents: commands, Python, files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(
    r"^(?P<mark><!-- not run: [^\n]+ -->\n+)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Fence:
    """A fenced block; `run` is off where a comment before it says why it cannot be."""

    kind: str
    text: str
    run: bool
    line: int


def fences(path: Path, kind: str) -> Iterator[Fence]:
    text = path.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        if found["kind"] == kind:
            yield Fence(kind, found["text"], found["mark"] is None, text[: found.start("text")].count("\n") + 1)


def commands(path: Path) -> Iterator[str]:
    """The lines of console blocks that a reader would type."""
    for fence in fences(path, "console"):
        for line in fence.text.splitlines():
            if line.startswith("$ "):
                yield line[2:]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))
