"""The outage as a plot: how long writes took, and how far both indexes were behind."""

from pathlib import Path
from typing import Any

from annotations.outage.ledger import Record, Request, percentile

_NEW, _OLD, _HOLE = "#0072B2", "#D55E00", "#000000"


def draw(record: Record, deadline_ms: int, path: Path) -> Path:
    """Write the plot; the suffix decides the format. Return its path."""
    import matplotlib as mpl  # noqa: PLC0415 - everything else does without it
    from matplotlib.figure import Figure  # noqa: PLC0415

    style: dict[Any, Any] = {
        "font.family": "sans-serif", "font.size": 11, "svg.fonttype": "none",
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
    }  # fmt: skip
    with mpl.rc_context(style):
        figure = Figure(figsize=(9, 6.5), layout="constrained", facecolor="white")
        took, behind = figure.subplots(2, 1, sharex=True)
        figure.suptitle(
            "Broker and index stop answering under load", fontweight="bold", x=0.01, ha="left"
        )
        old = [request for request in record.requests if request.kind == "old"]
        for requests, colour, name in (
            (record.writes(), _NEW, "row and job in one transaction"),
            (old, _OLD, "commit, then publish"),
        ):
            seconds, p99 = _by_second(requests)
            took.plot(seconds, p99, color=colour, linewidth=1.8, label=name)
        took.axhline(deadline_ms, color=_NEW, linewidth=1, linestyle=":", alpha=0.8)
        took.text(
            1, deadline_ms * 1.08, "deadline for the index", color=_NEW, fontsize=9, ha="right",
            transform=took.get_yaxis_transform(),
        )  # fmt: skip
        took.set_yscale("log")
        took.set_ylabel("write, p99 of a second, ms")
        took.legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
        times = [at for at, _ in record.counts]
        behind.plot(
            times, [counts.behind for _, counts in record.counts], color=_NEW, linewidth=1.8
        )
        behind.plot(
            times, [counts.old_missing for _, counts in record.counts], color=_OLD, linewidth=1.8
        )
        last = record.counts[-1][1]
        # Beside the ends of the lines, and above the axis.
        behind.set_xlim(right=1.25 * times[-1])
        for left, said, colour in (
            (last.old_missing, "lost for good", _OLD),
            (last.behind, "lost", _NEW),
        ):
            behind.annotate(
                f"{left:,} {said}", (times[-1], left), xytext=(6, 4), textcoords="offset points",
                color=colour, va="bottom", fontsize=10, fontweight="bold",
            )  # fmt: skip
        behind.set_ylabel("annotations without a right copy")
        behind.set_xlabel("seconds")
        behind.set_ylim(bottom=0)
        if record.cut_at is not None:
            end = record.healed_at if record.healed_at is not None else times[-1]
            for axes in (took, behind):
                axes.axvspan(record.cut_at, end, color=_HOLE, alpha=0.07, linewidth=0)
            behind.annotate(
                ("black hole"),
                (record.cut_at, 1),
                xycoords=("data", ("axes fraction")),
                xytext=(6, -6),
                textcoords=("offset points"),
                va="top",
                fontsize=10,
                alpha=0.7,
            )
        figure.savefig(path, dpi=130)
    return path


def _by_second(requests: list[Request]) -> tuple[list[int], list[float]]:
    by_second: dict[int, list[Request]] = {}
    for request in requests:
        by_second.setdefault(int(request.at), []).append(request)
    seconds = sorted(by_second)
    return seconds, [percentile(by_second[second], 0.99) for second in seconds]
