"""Entry of the console script ``polyarm`` and of ``python -m polyarm_core``."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; a Ctrl-C while it is still being imported ends the process without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from polyarm_core import cli

    cli.main()


if __name__ == "__main__":
    main()
