"""The steps of a flow: how they are shown, and forebay jobs rewind."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from forebay.cli._commands import argument, option
from forebay.cli._database import client_of
from forebay.cli.options import Dsn, Group, Json
from forebay.cli.output import ago, compact, facts_table, one_line, print_json, table
from forebay.cli.text import Text, console
from forebay.errors import ConfigError, shown
from forebay.model.text import counted

if TYPE_CHECKING:
    from forebay.cli.text import Console
    from forebay.model.flows import FlowState

From = Annotated[
    str | None,
    option("--from STEP[=KEY]", "Do this step of a flow and all later ones again."),
]

#: The kinds of checkpoints with which a wait begins.
_WAITS: Final = frozenset({"sleep", "wait", "children"})

#: More steps than these are in the output of --json.
_STEPS_MAX: Final = 20


def step_of(text: str) -> tuple[str, str | None]:
    """Return name and key of a step from ``STEP`` or ``STEP=KEY``.

    Raises:
        ConfigError: the name or the key is missing.
    """
    name, found, key = text.partition("=")
    if not name or (found and not key):
        raise ConfigError("--from", f"is {shown(text)}, not STEP or STEP=KEY", value=text)
    return name, key if found else None


def rewind(
    job_id: Annotated[int, argument("JOB_ID", "The job.")],
    *,
    step: Annotated[
        str, option("--from STEP[=KEY]", "Do this step of the flow and all later ones again.")
    ],
    group: Group = None,
    dry_run: Annotated[bool, option("--dry-run", "Change nothing; count the steps.")] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Let a flow that waits or is dead continue again from one of its steps.

    The steps before stay. Of a dead flow a new job is made, as `forebay dead redrive` does. Jobs
    that a forgotten step had enqueued run on.
    """
    name, key = step_of(step)
    client = client_of(dsn)
    if dry_run:
        plan = client.plan_rewind(job_id, name, key=key, group=group)
        if as_json:
            print_json(plan)
            return
        rows = facts_table()
        rows.add_row("would rewind", f"job {job_id}, {plan.state}")
        rows.add_row("keep", counted(plan.kept, "step"))
        rows.add_row("forget", counted(plan.dropped, "step"))
        if plan.children:
            rows.add_row("run on", f"{counted(plan.children, 'job')} of these steps")
        console().print(rows)
        return
    new = client.rewind(job_id, name, key=key, group=group)
    if as_json:
        print_json({"job_id": job_id, "continues_as": new})
    elif new == job_id:
        console().print(f"job {job_id} continues from step {step}")
    else:
        console().print(f"job {job_id} continues from step {step} as job {new}")


def flow_json(flow: FlowState | None, *, values: bool) -> dict[str, Any] | None:
    """Return a flow as JSON shows it; without values, steps do not have that member."""
    if flow is None:
        return None
    found = asdict(flow)
    del found["group"]
    if not values:
        for step in found["steps"]:
            del step["value"]
    return found


def print_steps(out: Console, flow: FlowState, *, values: bool) -> None:
    """Print the newest steps of a flow as a table."""
    left_out = len(flow.steps) - _STEPS_MAX
    title = Text("steps", style="bold")
    if left_out > 0:
        title.append(f"  {left_out:,} earlier ones: --json", style="dim")
    out.print(title)
    rows = table(
        *("no", "step", "kind", "recorded", "bytes", *(["value"] if values else [])),
        right=("no", "bytes"),
        loose=("step", "value"),
    )
    for step in flow.steps[-_STEPS_MAX:]:
        # What is recorded of it is until when, and not what it returns.
        is_its_step = (step.name, step.key) == (flow.step, flow.step_key)
        waits = flow.waits_for is not None and is_its_step and step.kind in _WAITS
        rows.add_row(
            str(step.no),
            one_line(step.title),
            step.kind,
            f"waits, {ago(step.at)}" if waits else ago(step.at),
            "-" if waits else f"{step.bytes:,}",
            *([one_line(compact(step.value, 200))] if values else []),
        )
    out.print(rows)


def newest_step(flow: FlowState) -> str:
    """Return the number of steps and the newest one, in a line."""
    last = flow.steps[-1]
    return f"{len(flow.steps):,}, the newest: {last.title} ({last.kind}) {ago(last.at)}"
