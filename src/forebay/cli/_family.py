"""The family of a job: what enqueued it, and what it has enqueued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from forebay.model.archive import Family, Relative

#: States of a child that its parent has to know of.
_BAD: Final = ("dead", "expired", "cancelled")


def relative_text(one: Relative) -> str:
    """Return a job of a family in a few words."""
    if one.kind is None:
        return f"job {one.job_id}, past retention"
    return f"job {one.job_id}  {one.kind}, {one.state}"


def children_text(family: Family) -> str:
    """Return the jobs that a job has enqueued, in a line; empty for none."""
    found = ", ".join(
        f"{one.job_id} {one.kind}" + (f" {one.state}" if one.state in _BAD else "")
        for one in family.children
    )
    if not family.is_complete:
        return f"{found} and maybe more" if found else "maybe some: the newest rows were searched"
    return found
