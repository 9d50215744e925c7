"""`python -m zbsolve` is the command `zbsolve`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from zbsolve.cli import main
    except KeyboardInterrupt:  # from here on the command answers it itself
        if sys.stderr is not None:
            sys.stderr.write("zbsolve: interrupted\n")
        sys.exit(130)
    main(prog_name="zbsolve")
