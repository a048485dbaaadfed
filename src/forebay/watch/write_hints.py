"""What mends a database in which writes fail."""

from __future__ import annotations

from typing import Final

from forebay.model.text import human_bytes

#: By SQLSTATE.
_HINTS: Final = {
    "53100": "Free room on the disk of the database server, or enlarge it; deleting jobs needs room"
    " itself.",
    "25006": "Connect to the primary, or promote this server: `select pg_promote();`",
}


def write_hint(sqlstate: str, ballast_bytes: int) -> str:
    """Return the hint for writes that fail with an SQLSTATE.

    Args:
        sqlstate: of a write that was tried.
        ballast_bytes: what an operator can release on a full disk.
    """
    hint = _HINTS.get(sqlstate, "See the log of the database server, and `forebay doctor`.")
    if sqlstate != "53100":
        return hint
    if not ballast_bytes:
        return f"{hint} See `df -h` there."
    return f"{hint} `forebay drop-ballast` releases {human_bytes(ballast_bytes)} for that."
