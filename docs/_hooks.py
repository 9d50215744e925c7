"""Hooks of the documentation's build: the reference of the command line comes from the command line."""

from __future__ import annotations

import re
from typing import Any

MARK = "<!-- every verb -->"

_OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+(?:examples|benchmarks|tests|[A-Z]+\.md)[^)]*\)")
"""Links that lead out of the documentation into the repository: here they are text."""


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Put every verb's own help where the mark stands, and keep the text alone of links into the repository."""
    markdown = _OUTSIDE.sub(r"\1", markdown)
    return markdown.replace(MARK, _verbs()) if MARK in markdown else markdown


def _verbs() -> str:
    import click

    from zbsolve.cli import main

    def told(command: click.Command, name: str, parent: click.Context | None) -> list[str]:
        context = click.Context(command, info_name=name, parent=parent, terminal_width=100, max_content_width=100)
        pieces = [f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"]
        if isinstance(command, click.Group):
            for verb in command.list_commands(context):
                below = command.get_command(context, verb)
                assert below is not None
                pieces += told(below, verb, context)
        return pieces

    return "\n".join(told(main, "zbsolve", None))
