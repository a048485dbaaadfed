"""How all acts on many jobs begin: a dry run with a token, or a question, or neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from forebay.cli._moment import check_ages, with_moment
from forebay.cli._patience import patience
from forebay.cli.exit import ExitCode
from forebay.cli.options import How, confirmed
from forebay.cli.output import print_json


class Plan(Protocol):
    """What a dry run found."""

    @property
    def token(self) -> str | None:
        """The token that stands for it."""

    @property
    def jobs(self) -> int:
        """The number of jobs."""


P = TypeVar("P", bound=Plan)


def agreed(
    how: How,
    count: Callable[[], P],
    question: Callable[[P], str],
    show: Callable[[P], None],
    *,
    named: bool = False,
    if_none: bool = False,
) -> str | None:
    """Return the token to act with: of the call, or of what the person has agreed to; None: with
    --yes.

    Args:
        how: as the person wants it.
        count: does the dry run.
        question: asks for consent to what the dry run found.
        show: prints what the dry run found.
        named: the call names each job, so it asks no question.
        if_none: ask even if no job was found.

    Raises:
        SystemExit: it was a dry run, or the person did not agree.
        ConfigError: the token is that of a dry run with an age, and the command has none.
    """
    check_ages()
    if not how.dry_run and (how.yes or how.token or named):
        return how.token
    with patience("counting"):
        plan = count()
    if how.dry_run:
        found = with_moment(plan)
        if how.as_json:
            print_json(found)
        else:
            show(found)
        raise SystemExit(ExitCode.DONE)
    if (plan.jobs or if_none) and not confirmed(question(plan)):
        raise SystemExit(ExitCode.FAILED)
    return plan.token
