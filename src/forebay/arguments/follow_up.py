"""Follow-ups: the job that a kind declares for the end of its jobs, done or dead."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from forebay._dataclass import dataclass
from forebay.errors import ConfigError, InvalidJob, shown
from forebay.model import JobOptions, checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from forebay.arguments.keys import KindOptions
    from forebay.arguments.kinds import Kind

#: The declarations, which are the names of the attributes of a kind too.
DECLARATIONS: Final = ("on_done", "on_dead")

#: The options that belong to a single job.
_OF_ONE_JOB: Final = ("run_at", "expires_at", "unique")


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """A job that the database enqueues when a job of a kind has ended.

    Attributes:
        kind: the name of its kind.
        options: its options; None: those of its kind in the app, or what the database knows.
        expires_in_seconds: it expires this time after it was due; None: the schema decides.
    """

    kind: str
    options: JobOptions | None = None
    expires_in_seconds: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the form that ``forebay.settle_v1`` takes."""
        form: dict[str, Any] = {"kind": self.kind}
        if self.options is not None:
            form.update(self.options.given())
        if self.expires_in_seconds is not None:
            form["expires_in"] = self.expires_in_seconds
        return form


def declared_follow_up(kind: str, declaration: str, given: object) -> FollowUp | None:
    """Return the follow-up that a kind declares; None for none.

    Args:
        kind: the name of the kind.
        declaration: ``on_done`` or ``on_dead``.
        given: the name of a kind, or a handler with the options of the job.

    Raises:
        ConfigError: it is neither, or its options belong to a single job.
    """
    if given is None:
        return None
    where = f"kind {kind}: {declaration}"
    if isinstance(given, str):
        try:
            return FollowUp(kind=checks.checked_name(given, declaration))
        except InvalidJob as error:
            raise ConfigError(where, str(error.problem), value=given) from None
    name = getattr(getattr(given, "kind", None), "name", None)
    options = getattr(given, "options", None)
    if not isinstance(name, str) or not isinstance(options, JobOptions):
        raise ConfigError(
            where,
            f"is {shown(given)}, neither a handler nor the name of a kind",
            hint=f"The function of @app.{declaration} runs in the worker. A follow-up is a job:"
            " declare its handler with @app.job.",
        )
    for option in _OF_ONE_JOB:
        if getattr(options, option) is not None:
            raise ConfigError(
                where,
                f"has the option {option}, which belongs to a single job",
                hint="delay and expires_in count from the end of the job.",
            )
    return FollowUp(
        kind=name, options=options, expires_in_seconds=getattr(given, "expires_in_seconds", None)
    )


def with_known_follow_ups(kind: Kind, options_of: Callable[[str], KindOptions | None]) -> Kind:
    """Return a kind whose follow-ups have the options that their kinds declare.

    Args:
        kind: the kind.
        options_of: the options of the kinds of the app; None for a kind of another app.
    """
    changes: dict[str, Any] = {}
    for declaration in DECLARATIONS:
        follow_up: FollowUp | None = getattr(kind, declaration)
        known = None if follow_up is None else options_of(follow_up.kind)
        if follow_up is not None and follow_up.options is None and known is not None:
            changes[declaration] = FollowUp(
                kind=follow_up.kind,
                options=known.options,
                expires_in_seconds=known.expires_in_seconds,
            )
    return replace(kind, **changes) if changes else kind


def check_follow_ups(kinds: Iterable[Kind]) -> None:
    """Refuse follow-ups that would coalesce or never end.

    Raises:
        ConfigError: a follow-up's kind makes unique keys or is of subjects, or follows itself.
    """
    by_name = {kind.name: kind for kind in kinds}
    for kind in by_name.values():
        for declaration in DECLARATIONS:
            follow_up: FollowUp | None = getattr(kind, declaration)
            known = None if follow_up is None else by_name.get(follow_up.kind)
            if known is None:
                continue
            where = f"kind {kind.name}: {declaration}"
            if known.subject is not None:
                raise ConfigError(where, f"is {known.name}, a kind of subjects")
            if known.keys is not None and "unique_by" in known.keys.by:
                raise ConfigError(
                    where,
                    f"is {known.name}, whose jobs have unique keys: each end of a job has its own"
                    " follow-up",
                    hint="Let the handler of the follow-up enqueue the job with the unique key.",
                )
            way = _way_back(kind.name, known.name, by_name)
            if way:
                raise ConfigError(
                    where,
                    f"never ends: {' -> '.join([kind.name, *way])}",
                    hint="Let a handler enqueue the next job, and decide whether there is one.",
                )


def _way_back(to: str, start: str, kinds: Mapping[str, Kind]) -> list[str]:
    """Return the kinds from one to another by follow-ups; an empty list if there is no way."""
    ways, seen = [[start]], {start}
    while ways:
        way = ways.pop()
        if way[-1] == to:
            return way
        kind = kinds.get(way[-1])
        for declaration in DECLARATIONS if kind is not None else ():
            follow_up: FollowUp | None = getattr(kind, declaration)
            if follow_up is not None and follow_up.kind not in seen:
                seen.add(follow_up.kind)
                ways.append([*way, follow_up.kind])
    return []
