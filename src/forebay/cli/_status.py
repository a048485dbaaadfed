"""forebay status: whether there is something to do, and what."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from forebay._error import is_database_error
from forebay.cli._alerts import MARKS, SEVERITIES, state_of
from forebay.cli._database import address_of
from forebay.cli._patience import patience
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, Json
from forebay.cli.output import ago, print_json
from forebay.cli.text import Text, console
from forebay.errors import ForebayError
from forebay.model.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.cli.text import Console
    from forebay.model.problems import Problem

#: Exit code where the database is unreachable, or has no schema.
_UNKNOWN: Final = 2

#: Problems that are shown; each takes at least three of 24 rows.
_SHOWN_MAX: Final = 7

#: Shown of those that are over, or have not lasted long enough.
_OTHERS_MAX: Final = 3


def status(*, dsn: Dsn = None, as_json: Json = False) -> None:
    """Tell whether there is something to do, and what.

    The worst problems come first, each with since when, its cause, and what mends it. The exit
    code is 0 if there is nothing to do, 1 if there is a problem, and 2 if this cannot be told, as
    the database is unreachable or has no schema. No worker needs to be alive. A paused queue with
    ready jobs, and a silent worker whose jobs are still its own, are named last, and do not count
    as problems.
    """
    from forebay.doctor.status import current_problems

    try:
        with patience("looking, and counting what no worker has counted"):
            found = asyncio.run(current_problems(address_of(dsn), with_notes=True))
    except Exception as error:
        if not (isinstance(error, ForebayError) or is_database_error(error)):
            raise
        _print_unknown(error, as_json)
        raise SystemExit(_UNKNOWN) from None
    now = [one for one in found if one.state == "holds"]
    if as_json:
        print_json({"verdict": "problem" if now else "fine", "problems": found})
    else:
        _print(console(), now, [one for one in found if one.state != "holds"])
    if now:
        raise SystemExit(ExitCode.FAILED)


def _print(out: Console, now: Sequence[Problem], others: Sequence[Problem]) -> None:
    out.print(_verdict(now))
    for problem in now[:_SHOWN_MAX]:
        mark, style = SEVERITIES[problem.severity]
        line = Text.assemble((f"{mark} ", style), (problem.name, "bold"))
        if problem.since is not None:
            line.append(f", {ago(problem.since).replace(' ago', '')}", "dim")
        out.print(line)
        out.print(Text(problem.cause), indent=2)
        is_ours = problem.command.startswith("forebay ")
        out.print(Text(f"→ {problem.command if is_ours else problem.hint}", "cyan"), indent=2)
    if len(now) > _SHOWN_MAX:
        out.print(Text(f"and {len(now) - _SHOWN_MAX} more: forebay status --json", "dim"))
    for problem in others[:_OTHERS_MAX]:
        mark, style = MARKS[problem.state]
        text = state_of(problem)
        if problem.state == "pending":
            text += f": {problem.cause}"
        elif problem.state == "noted":
            text = f"{problem.cause}; {problem.command}"
        out.print(Text(f"{mark} {problem.name}: {text}", style))
    if len(others) > _OTHERS_MAX:
        more = f"and {len(others) - _OTHERS_MAX} more of these: forebay status --json"
        out.print(Text(more, "dim"))


def _verdict(now: Sequence[Problem]) -> Text:
    if not now:
        return Text("✓ nothing to do", "bold green")
    errors = sum(one.severity == "error" for one in now)
    warnings = len(now) - errors
    parts = [counted(errors, "error")] * bool(errors)
    parts += [counted(warnings, "warning")] * bool(warnings)
    mark, style = SEVERITIES["error" if errors else "warning"]
    return Text(f"{mark} {', '.join(parts)}", style)


def _print_unknown(error: Any, as_json: bool) -> None:
    if isinstance(error, ForebayError):
        message, hint = error.message, error.hint
    else:
        message, hint = error.diag.message_primary or str(error), error.diag.message_hint
    if as_json:
        print_json({"verdict": "unknown", "problems": [], "error": message, "hint": hint})
        return
    out = console()
    out.print(Text(f"? cannot tell: {message}", "bold red"))
    if hint:
        out.print(Text(f"→ {hint}", "cyan"), indent=2)
