"""forebay migrate, sql and adopt: the schema of a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from forebay.cli._apply import print_differences
from forebay.cli._commands import Together, option
from forebay.cli._database import address_of, client_of, run
from forebay.cli._load import load_app
from forebay.cli.exit import ExitCode
from forebay.cli.options import AppDir, Dsn, Json, confirmed, duration, setting_flags
from forebay.cli.output import print_json, table
from forebay.cli.text import Text, console
from forebay.errors import ConfigError
from forebay.model.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.model.declared import QueueDifference
    from forebay.sql import Migration
    from forebay.upgrade.migrate import Upgraded
    from forebay.upgrade.rehearse import HeldLock, Rehearsal

OnlyPre = Annotated[
    bool, option("--pre", "Only migrations that may run before the new code is deployed.")
]


def _lock_policy(
    *,
    lock_timeout: Annotated[
        str,
        option(
            "--lock-timeout DURATION",
            "Maximum time that other sessions wait behind one attempt to get a lock.",
        ),
    ] = "0.5",
    patience: Annotated[
        str, option("--patience DURATION", "Maximum time to retry getting locks.")
    ] = "60",
    hold: Annotated[
        str,
        option(
            "--hold DURATION",
            "Maximum time that a migration holds its locks before it is rolled back.",
        ),
    ] = "5",
) -> Any:
    from forebay.upgrade.migrate import LockPolicy

    return LockPolicy(
        lock_timeout_seconds=_seconds(lock_timeout, "lock-timeout"),
        patience_seconds=_seconds(patience, "patience"),
        hold_seconds_max=_seconds(hold, "hold"),
        report=lambda message: console(stderr=True).print(Text(message, style="dim")),
    )


def migrate(
    *,
    dry_run: Annotated[bool, option("--dry-run", "Only show what would be done.")] = (False),
    rehearse: Annotated[
        bool,
        option(
            "--rehearse",
            "Apply with all locks, roll back, and print what was locked and for how long.",
        ),
    ] = False,
    repair: Annotated[
        bool,
        option(
            "--repair",
            "Restore functions, grants and comments that were changed by hand, and no table.",
        ),
    ] = False,
    pre: OnlyPre = False,
    app: Annotated[
        str | None,
        option(
            "--app MODULE:APP",
            "Then apply the queues that this application declares, as `forebay apply`.",
        ),
    ] = None,
    app_dir: AppDir = None,
    wait: Annotated[
        str | None,
        option("--wait DURATION", "Maximum time to wait until workers of older versions end: 15m."),
    ] = None,
    lock_policy: Annotated[Any, Together(_lock_policy)],
    dsn: Dsn = None,
    as_json: Json = False,
    flags: Annotated[dict[str, Any], setting_flags("retention", "payload", "segments")],
) -> None:
    """Migrate the schema to the version of this library. It is safe to repeat.

    Jobs keep running with code of the previous version. A *post* migration removes what that code
    calls: it is held back while a worker of an older version is alive. Database settings given in a
    file, in the environment or as options are stored in the database.
    """
    from forebay.config import load_settings
    from forebay.ops.overview import database_settings
    from forebay.upgrade.migrate import Upgraded, upgrade
    from forebay.upgrade.migrate import migrate as apply_migrations
    from forebay.upgrade.rehearse import rehearse as run_rehearsal

    wanted = load_settings(flags).database_values()
    found = load_app(app, app_dir)[0] if app else None
    address = address_of(dsn) if found is None or dsn is not None else found.dsn
    if rehearse:
        _print_rehearsal(run_rehearsal(address, lock_policy=lock_policy), as_json=as_json)
        return
    if repair:
        _repair(address, dry_run=dry_run, as_json=as_json)
        return
    wait_seconds = _seconds(wait, "wait")
    if dry_run:
        done = Upgraded(apply_migrations(address, dry_run=True, only_pre=pre))
    else:
        done = upgrade(address, only_pre=pre, wait_seconds=wait_seconds, lock_policy=lock_policy)
    has_schema = not dry_run or not done.applied or done.applied[0].version > 1
    stored: dict[str, int] = run(address, database_settings()) if has_schema else {}
    changes = _store(address, wanted, stored, dry_run=dry_run)
    differences: list[QueueDifference] | None = None
    # A schema that is still to be migrated cannot be compared.
    if found is not None and not (dry_run and done.applied):
        found._internals.use(dsn=address)
        differences = found.apply(dry_run=dry_run)
    if as_json:
        print_json(
            {
                "version": _version(done),
                "dry_run": dry_run,
                "applied": _named(done.applied),
                "held_back": _named(done.held_back),
                "reason": done.reason and done.reason.message,
                "settings": changes,
                "queues": differences,
            }
        )
    else:
        _print_upgrade(done, changes, stored, dry_run=dry_run)
        if found is not None and differences is not None:
            print_differences(found, differences, dry_run=dry_run)
    if done.held_back and not pre and wait is not None:
        raise SystemExit(ExitCode.FAILED)


def _repair(address: str, *, dry_run: bool, as_json: bool) -> None:
    from forebay.doctor.repair import repair

    done = repair(address, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, "mended": done.mended, "left": done.left})
    else:
        out = console()
        verb = "would mend" if dry_run else "mended"
        for name in done.mended:
            out.print(Text(f"{verb} ", style="dim").append(name, "default"), soft_wrap=True)
        for finding in done.left:
            out.print(Text("left ", style="yellow").append(finding.what, "default"), soft_wrap=True)
        out.print(
            f"schema forebay: {verb} {counted(len(done.mended), 'object')}; "
            + ("something is left" if done.left else "it is as the migrations make it")
        )
        if done.left:
            out.print(
                "→ compare what is left with the output of `forebay sql`: a repair changes no "
                "table, column, index, type or sequence",
                soft_wrap=True,
            )
    if any(finding.level == "error" for finding in done.left):
        raise SystemExit(ExitCode.FAILED)


def _store(
    address: str, wanted: dict[str, int], stored: dict[str, int], *, dry_run: bool
) -> dict[str, int]:
    """Store the settings that differ, unless it is a dry run, and return them."""
    changes = {name: value for name, value in wanted.items() if stored.get(name) != value}
    for name, value in () if dry_run else changes.items():
        client_of(address).configure(name, value)
    return changes


def _print_upgrade(
    done: Upgraded, changes: dict[str, int], stored: dict[str, int], *, dry_run: bool
) -> None:
    out = console()
    verb = "would apply" if dry_run else "applied"
    for step in done.applied:
        out.print(Text(f"{verb} ", style="dim").append(f"{step.version:04} {step.name}", "default"))
    for name, value in changes.items():
        before = f", was {stored[name]:,}" if name in stored else ""
        out.print(
            Text("would set " if dry_run else "set ", style="dim").append(
                f"{name} = {value:,}{before}", "default"
            )
        )
    for step in done.held_back:
        out.print(Text("held back ", style="yellow").append(_title(step), "default"))
    if dry_run:
        last = done.applied[-1].version if done.applied else None
        to_do = f"to version {last}" if last else "nothing to migrate"
        out.print(f"schema forebay: {to_do}; nothing was changed")
        return
    verb = "migrated to" if done.applied else "is at"
    out.print(Text(f"schema forebay {verb} version {_version(done)}", style="green"))
    if done.reason is not None:
        out.print(f"{done.reason.message}\n{done.reason.detail or ''}".strip(), soft_wrap=True)
        out.print(Text("hint: ", style="bold cyan").append(str(done.reason.hint), "default"))


def _version(done: Upgraded) -> int:
    from forebay.sql import latest_version

    return latest_version() - len(done.held_back)


def _print_rehearsal(done: Rehearsal, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "steps": [
                    {
                        "version": step.migration.version,
                        "name": step.migration.name,
                        "rehearsed": step.seconds is not None,
                        "seconds": _rounded(step.seconds),
                        "waited_seconds": _rounded(step.waited_seconds),
                        "older_workers": step.older_workers,
                        "locks": [_lock(lock) for lock in step.locks],
                    }
                    for step in done.steps
                ],
                "longest": done.longest
                and {"version": done.longest[0].migration.version} | _lock(done.longest[1]),
                "seconds": _rounded(done.seconds),
            }
        )
        return
    out = console()
    if not done.steps:
        out.print("nothing to migrate")
        return
    if done.steps[0].migration.version == 1:
        out.print(f"first installation, {len(done.steps)} migrations: no other session can wait")
        return
    rows = table(
        "migration",
        "takes",
        "locks",
        "mode",
        "held",
        "blocks",
        right=("takes", "held"),
        loose=("migration", "locks", "blocks"),
    )
    for step in done.steps:
        title = _title(step.migration)
        if step.seconds is None:
            rows.add_row(title, "-", "not rehearsed: commits each statement")
            continue
        takes = _millis(step.seconds)
        for lock in step.locks:
            many = f" ({lock.count})" if lock.count > 1 else ""
            rows.add_row(
                title,
                takes,
                f"{lock.relation}{many}",
                lock.mode,
                _millis(lock.seconds),
                lock.stops + ("" if lock.declared or lock.stops != "all" else ", undeclared"),
            )
            title = takes = ""
        if not step.locks:
            rows.add_row(title, takes, "none that blocks another session")
    out.print(rows)
    for step in done.steps:
        if step.older_workers:
            out.print(f"{step.older_workers}", soft_wrap=True)
    if done.longest is None:
        out.print("no session would have waited; everything was rolled back")
    else:
        step, lock = done.longest
        out.print(
            f"longest: {lock.mode} on {lock.relation} for {_millis(lock.seconds)}, in"
            f" {_title(step.migration)}; everything was rolled back"
        )


def _lock(lock: HeldLock) -> dict[str, object]:
    return {
        "relation": lock.relation,
        "count": lock.count,
        "mode": lock.mode,
        "stops": lock.stops,
        "held_seconds": _rounded(lock.seconds),
        "declared": lock.declared,
    }


def _named(steps: Sequence[Migration]) -> list[dict[str, Any]]:
    return [{"version": step.version, "name": step.name} for step in steps]


def _title(step: Migration) -> str:
    return f"{step.version:04} {step.name}"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


def _millis(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds < 10 else f"{seconds:,.0f} s"


def _seconds(text: str | None, name: str) -> float:
    found = duration(text, name)
    return 0.0 if found is None else found.total_seconds()


def sql(
    *,
    from_version: Annotated[
        int, option("--from-version N", "Schema version of the database; 0 if it has no schema.")
    ] = 0,
    transaction: Annotated[
        bool,
        option(
            "--transaction/--no-transaction",
            "Include begin and commit; omit them for a tool that opens the transaction.",
        ),
    ] = True,
    pre: OnlyPre = False,
) -> None:
    """Print the migrations as one SQL script, for a DBA or Alembic."""
    from forebay.upgrade.migrate import migration_sql

    print(migration_sql(from_version, transaction=transaction, only_pre=pre), end="")


def adopt(
    *,
    resume: Annotated[bool, option("--resume", "Run the waiting jobs.")] = False,
    discard: Annotated[bool, option("--discard", "Cancel the waiting jobs.")] = False,
    yes: Annotated[bool, option("--yes", "Do not ask for confirmation.")] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Resume or discard the jobs of a copied or restored database.

    Until then no job runs: a copy of production would send the e-mails of production again. Jobs
    enqueued since the restore are always kept.
    """
    from forebay.db.own import run_own
    from forebay.ops.overview import adopt as adopt_operation

    if resume == discard:
        raise ConfigError(
            "adopt",
            "takes exactly one of --resume and --discard",
            hint=(
                "--resume runs the jobs that waited when the copy was made; --discard cancels them."
            ),
        )
    if discard and not yes and not confirmed("Cancel every job of the copy?"):
        raise SystemExit(ExitCode.FAILED)
    done = run_own(address_of(dsn), adopt_operation(resume=resume))
    if as_json:
        print_json(done)
    else:
        console().print(
            f"adopted: {counted(done.resumed, 'job')} resumed, {done.discarded:,} discarded"
        )
