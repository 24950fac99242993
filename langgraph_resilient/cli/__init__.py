"""The command ``langgraph-resilient``; this module only starts it and must import nothing heavy.

The commands need the extra ``cli``. It is looked for when the command runs, so that the script,
which every installation has, can say what is missing.
"""

from __future__ import annotations

import sys

_EXTRA = frozenset({"typer", "rich", "aiosmtpd"})


def main() -> None:
    """Run the command line of this process and exit with its code."""
    try:
        from langgraph_resilient.cli.app import app

        app(prog_name="langgraph-resilient")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.stderr.write(
            f"langgraph-resilient: the package {error.name!r} is not installed, which the command "
            'line needs; install it with: pip install "langgraph-resilient[cli]"\n'
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
