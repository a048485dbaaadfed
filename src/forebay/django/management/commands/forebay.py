"""manage.py forebay: the program ``forebay`` with the project's database and handlers."""

from __future__ import annotations

import os
from argparse import REMAINDER, ArgumentParser
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from forebay.cli import main
from forebay.cli import run as run_program
from forebay.django import app

#: What a person types before a command.
_NAME: Final = "manage.py forebay"

#: The variable with the database address; the option --dsn takes precedence.
_ADDRESS: Final = "FOREBAY_DATABASE_URL"

#: Commands whose first argument is an application.
_WITH_APP: Final = {"apply", "worker", "tick", "dev"}

#: Commands whose option --app is the project's application by default.
_NAMES_KIND: Final = {"enqueue", "backfill"}


class Command(BaseCommand):
    """Passes all arguments to the program; ``manage.py forebay --help`` shows its help."""

    help = (
        "Run a forebay command on this project's database: worker, apply, jobs, doctor and others."
    )
    requires_system_checks: Any = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the program and exit with its code."""
        os.environ[_ADDRESS] = app.dsn
        main(_completed(argv[2:]), name=_NAME)

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Accept all arguments unchanged."""
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *_args: Any, arguments: list[str], **_options: Any) -> None:
        """Run the program for ``call_command("forebay", ...)``."""
        before = os.environ.get(_ADDRESS)
        os.environ[_ADDRESS] = app.dsn
        try:
            code = run_program(_completed(arguments), name=_NAME)
        finally:
            del os.environ[_ADDRESS]
            if before is not None:
                os.environ[_ADDRESS] = before
        if code:
            raise CommandError(f"forebay ended with exit code {code}", returncode=code)


def _completed(arguments: list[str]) -> list[str]:
    """Return the arguments, with the project's application if none is given."""
    command, *rest = arguments or ["--help"]
    if command in _WITH_APP and not (rest and not rest[0].startswith("-")):
        return [command, "forebay.django.entry:app", *rest]
    if command in _NAMES_KIND and not any(part.partition("=")[0] == "--app" for part in rest):
        return [command, "--app", "forebay.django.entry:app", *rest]
    return [command, *rest]
