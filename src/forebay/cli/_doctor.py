"""forebay doctor: find problems and their remedies."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final

from forebay.cli._commands import option
from forebay.cli._database import address_of
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, Json
from forebay.cli.output import print_json
from forebay.cli.text import Table, Text, console
from forebay.doctor import Level
from forebay.model.text import counted, sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.doctor import Finding
    from forebay.model.explanation import Explanation

#: Exit code where a check could not be made, as of `forebay status` where it cannot tell.
_UNCHECKED: Final = 2

_MARKS: Final = {
    Level.ERROR: ("✗", "bold red"),
    Level.WARNING: ("!", "bold yellow"),
    Level.NOTICE: ("·", "cyan"),
    Level.OK: ("✓", "green"),
}


def doctor(
    *,
    job: Annotated[int | None, option("--job JOB_ID", "Explain why this job does not run.")] = None,
    verbose: Annotated[
        bool, option("-v, --verbose", "Also show notices, and the checks that passed.")
    ] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Find problems of the database, or why a job does not run.

    The doctor only reads, and briefly: run it at any time. It exits with 1 if it finds an error, or
    no such job, and with 2 if it finds none and a check could not be made.
    """
    from forebay.config import masked_dsn
    from forebay.doctor.examine import examine, examine_job

    address = address_of(dsn)
    if job is not None:
        _explain(job, asyncio.run(examine_job(address, job)), as_json)
        return
    found = asyncio.run(examine(address))
    worst = min(found, key=lambda finding: finding.level.rank).level
    if as_json:
        print_json(
            {"address": masked_dsn(address), "worst": worst, "findings": found},
        )
    else:
        out = console()
        shown = [finding for finding in found if verbose or _is_shown(finding)]
        if shown:
            out.print(_report(shown))
            out.print()
        out.print(_summary(found, verbose=verbose))
    if worst is Level.ERROR:
        raise SystemExit(ExitCode.FAILED)
    if any(_is_unchecked(finding) for finding in found):
        raise SystemExit(_UNCHECKED)


def _is_shown(finding: Finding) -> bool:
    """Whether a finding is shown without -v: problems, pauses that keep jobs back, and what could
    not be seen.
    """
    return finding.level in (Level.ERROR, Level.WARNING) or (
        finding.level is Level.NOTICE
        and any(finding.facts.get(name) for name in ("paused", "unseen", "unchecked"))
    )


def _is_unchecked(finding: Finding) -> bool:
    return bool(finding.facts.get("unchecked"))


def _explain(job_id: int, found: Sequence[Explanation], as_json: bool) -> None:
    is_unknown = any(one.cause == "unknown" for one in found)
    if as_json:
        print_json({"job_id": job_id, "explanations": found})
    else:
        out = console()
        for number, one in enumerate(found):
            if number:
                out.print()
            group = f", group {one.group}" if len(found) > 1 else ""
            out.print(Text(f"job {job_id}{group}", style="bold"))
            # The answer of the last question follows as a sentence.
            passed = one.steps if one.cause in ("soon", "trouble") else one.steps[:-1]
            rows = Table(gap=1)
            rows.add_column(no_wrap=True)
            rows.add_column(no_wrap=True, style="dim")
            rows.add_column(style="dim")
            for step in passed:
                rows.add_row(Text("✓", style="green"), step.question, Text(step.answer))
            if passed:
                out.print(rows)
                out.print()
            out.print(answer_text(one))
    if is_unknown:
        raise SystemExit(ExitCode.FAILED)


def answer_text(explanation: Explanation) -> Text:
    """Return the answer and the next step."""
    text = Text(f"{sentence(explanation.answer)}.", style="bold")
    if explanation.hint:
        text.append(f"\n→ {explanation.hint}", style="not bold")
    return text


def _report(found: Sequence[Finding]) -> Table:
    rows = Table(gap=1)
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column()
    # The worst last, next to the prompt when the command has ended.
    ordered = sorted(found, key=lambda finding: -finding.level.rank)
    for finding, following in zip(ordered, [*ordered[1:], None], strict=True):
        mark, style = _MARKS[finding.level]
        what = Text(finding.what, style="dim" if finding.level is Level.OK else "default")
        same_remedy = following is not None and following.remedy == finding.remedy
        if finding.remedy and not same_remedy:
            what.append("\n→ ", style=style).append(finding.remedy, style="default")
        rows.add_row(
            Text(mark, style=style),
            Text(finding.check, style="dim" if finding.level is Level.OK else style),
            what,
        )
    return rows


def _summary(found: Sequence[Finding], *, verbose: bool) -> Text:
    unchecked = sum(_is_unchecked(finding) for finding in found)
    counts = Counter(finding.level for finding in found if not _is_unchecked(finding))
    problems = [
        Text(f"{counts[level]} {level if counts[level] == 1 else f'{level}s'}", _MARKS[level][1])
        for level in reversed(Level)
        if level is not Level.OK and counts[level] and (verbose or level is not Level.NOTICE)
    ]
    nothing = Text("no problems found", style="bold green")
    if unchecked:
        could_not = Text(f"{counted(unchecked, 'check')} could not be made", style="bold yellow")
        problems = [*problems, could_not]
    line = Text(", ").join(problems) if problems else nothing
    if not verbose:
        notices = f"{counted(counts[Level.NOTICE], 'notice')} and " * bool(counts[Level.NOTICE])
        line.append(
            f"; {notices}{counted(counts[Level.OK], 'check')} passed, -v shows them",
            style="dim not bold",
        )
    return line
