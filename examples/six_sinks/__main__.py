"""scripts/demo --deliver [--json] [--messages N]"""

import argparse
import json
import sys

from rich.console import Console

from forebay.errors import ForebayError
from six_sinks.run import MESSAGES, as_dicts, run
from six_sinks.view import View


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/demo --deliver",
        description=(
            "Drain one queue to six sinks, while one is killed, one loses messages and one is slow."
        ),
    )
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    parser.add_argument(
        "--messages",
        type=int,
        default=MESSAGES,
        metavar="N",
        help="how many transactions (default: %(default)s)",
    )
    options = parser.parse_args()
    stream = sys.stderr if options.json else sys.stdout
    width = None if stream.isatty() else 80
    view = View(Console(stderr=options.json, highlight=False, markup=False, width=width))
    try:
        with view:
            rows = run(view, messages=options.messages)
    except ForebayError as error:
        for line in (f"error: {error.message}", error.detail, error.hint):
            if line:
                print(line, file=sys.stderr)
        return 1
    view.result(rows)
    if options.json:
        print(json.dumps({"sinks": as_dicts(rows)}))
    return 1 if any(row.lost or row.early for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
