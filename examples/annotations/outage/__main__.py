"""scripts/demo --outage [--json] [--keep] [--plot FILE] [--writes N]"""

import argparse
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from rich.console import Console

from annotations.outage.run import WRITES, run_outage, stop_kept
from annotations.outage.view import View
from forebay.errors import ForebayError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/demo --outage",
        description=(
            "The example application under load while its broker and its index accept "
            "connections and never answer."
        ),
    )
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    parser.add_argument(
        "--keep", action="store_true", help="leave both servers running, for a count from outside"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        default=Path("outage.svg"),
        metavar="FILE",
        help="where to draw it: an SVG or a PNG (default: %(default)s)",
    )
    parser.add_argument(
        "--writes",
        type=int,
        default=WRITES,
        metavar="N",
        help="how many writes (default: %(default)s)",
    )
    parser.add_argument(
        "--stop", action="store_true", help="stop the index's server that --keep left"
    )
    options = parser.parse_args()
    if options.stop:
        stop_kept()
        return 0
    stream = sys.stderr if options.json else sys.stdout
    width = None if stream.isatty() else 160
    console = Console(stderr=options.json, highlight=False, markup=False, width=width)
    try:
        result = run_outage(
            View(console), keep=options.keep, writes=options.writes, plot=options.plot.absolute()
        )
    except ForebayError as error:
        for line in (f"error: {error.message}", error.detail, error.hint):
            if line:
                print(line, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(asdict(result)))
    # On a busy machine slow requests prove nothing.
    return 0 if result.is_right and (result.is_fast or result.was_busy) else 1


def end(signum: int, _frame: FrameType | None) -> None:
    """End as with Ctrl-C, so that the services and both servers end too."""
    sys.exit(128 + signum)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
