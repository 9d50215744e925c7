"""`python -m zbsolve` is the command `zbsolve`."""

from __future__ import annotations

from zbsolve.cli import main

if __name__ == "__main__":
    main(prog_name="zbsolve")
