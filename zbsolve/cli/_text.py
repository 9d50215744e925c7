"""Text from outside, made safe to show."""

from __future__ import annotations

__all__ = ["inert", "one_line"]


def inert(text: object) -> str:
    """Show text so that it cannot steer a terminal: what is not printable becomes its escape."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in str(text)
    )


def one_line(text: object) -> str:
    """Make a message of one line, inert."""
    return inert(" ".join(str(text).split("\n"))).strip()
