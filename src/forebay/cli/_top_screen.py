"""The screen of ``forebay top``: lines that fit the width and the height of a terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.cells import cell_len, chop_cells
from rich.text import Text

from forebay._dataclass import dataclass
from forebay.cli._alerts import MARKS, SEVERITIES, state_of
from forebay.model.text import counted, human_bytes, replaced_controls
from forebay.policy.keys import key_answer
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.model.keys import KeyInfo
    from forebay.model.problems import Problem
    from forebay.watch.screen import Overview, QueueLoad, WorkerLoad

SORTS: Final = ("ready", "rate", "oldest", "dead", "name")
_HEAD: Final = "bold dim"


@dataclass(kw_only=True)
class View:
    """What the user chose.

    Attributes:
        problem: why the last read failed; empty if it did not.
    """

    every: float
    sort: str = "ready"
    is_paused: bool = False
    problem: str = ""


class _Column(NamedTuple):
    """A column of numbers; it is shown from a width on."""

    name: str
    width: int
    text: Callable[[QueueLoad], str]
    style: str = ""


_COLUMNS: Final = (
    _Column("scheduled", 110, lambda q: _count(q.scheduled), "yellow"),
    _Column("ready", 0, lambda q: _count(q.ready), "blue"),
    _Column("claimed", 140, lambda q: _count(q.claimed), "cyan"),
    _Column("run", 0, lambda q: _count(q.running), "cyan"),
    _Column("retry", 0, lambda q: _count(q.retrying), "red"),
    _Column("dead", 0, lambda q: _count(q.dead), "bold red"),
    _Column("claims/s", 0, lambda q: _rate(q.claims_per_second), "green"),
    _Column("done/s", 110, lambda q: _counted(q, q.done_per_second), "green"),
    _Column("failed/s", 125, lambda q: _counted(q, q.failed_per_second), "red"),
    _Column("oldest", 0, lambda q: _short(q.oldest_ready_seconds)),
    _Column("wait p50", 0, lambda q: _short(q.wait_p50)),
    _Column("p95", 0, lambda q: _short(q.wait_p95)),
    _Column("run p50", 125, lambda q: _short(q.run_p50)),
    _Column("p95", 125, lambda q: _short(q.run_p95)),
    _Column("", 140, lambda q: _state(q), "yellow"),
)
#: The column by which queues are sorted is underlined.
_SORTED: Final = {"ready": "ready", "rate": "claims/s", "oldest": "oldest", "dead": "dead"}


def screen(
    overview: Overview, view: View, width: int, height: int, *, is_live: bool = False
) -> Text:
    """Return a screen; each line ends with a line feed and no line is wider than the terminal."""
    alerts = _problems(overview.problems, width, max(2, height // 6))
    rest = height - len(alerts) - 2 - (1 if is_live else 0)
    queues = _queues(overview, view, width)
    workers = _workers(overview.workers, width)
    keys = _keys(overview.keys, width)
    lower = [part for part in (workers, keys) if part]
    # Workers and keys get a quarter of the rows each, and what the queues do not need.
    quarter = max(3, rest // 4)
    reserved = sum(min(len(part), quarter) + 1 for part in lower)
    queues_rows = max(2, min(len(queues), rest - reserved))
    left = rest - queues_rows
    lines = [_title(overview, view, width), *alerts, Text(), *_cut(queues, queues_rows, "queues")]
    for place, part in enumerate(lower):
        others = sum(min(len(one), quarter) + 1 for one in lower[place + 1 :])
        rows = min(len(part), left - others - 1)
        if rows >= 2:
            lines += [Text(), *_cut(part, rows, "workers" if part is workers else "keys")]
            left -= rows + 1
    if is_live:
        lines = lines[: height - 1]
        lines += [Text()] * (height - 1 - len(lines))
        lines.append(Text((
                f"q quit  s sort ({view.sort})  p "
                f"{'resume' if view.is_paused else 'pause'}"
                ), "dim"))  # fmt: skip
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    joined = Text("\n").join(lines)
    return joined if is_live else joined.append("\n")


def cut_middle(text: str, width: int) -> str:
    """Return a text of one line and at most some cells; the middle of a longer one is left out.

    >>> cut_middle("notifications_europe", 11), cut_middle("mail", 11)
    ('notif…urope', 'mail')
    """
    text = replaced_controls(text).replace("\n", "␊").replace("\t", "␉")
    if cell_len(text) <= width:
        return text
    tail = max(0, (width - 1) // 2)
    head = max(0, width - 1 - tail)
    first = chop_cells(text, head)[0] if head else ""
    last = chop_cells(text[::-1], tail)[0][::-1] if tail else ""
    return f"{first}…{last}"


def _title(overview: Overview, view: View, width: int) -> Text:
    at = datetime.fromtimestamp(overview.at, UTC).astimezone()
    line = Text.assemble(("forebay top", "bold"), f"  {at:%H:%M:%S}  every {view.every:g} s")
    if view.is_paused:
        line.append("  paused", "bold yellow")
    if view.problem:
        line.append(f"  {replaced_controls(view.problem).replace(chr(10), ' ')}", "bold red")
    # A deliverer has hundreds of slots, beside which those of workers would not be seen.
    others = [worker for worker in overview.workers if not worker.delivers]
    running = sum(worker.running for worker in others)
    slots = sum(worker.slots or 0 for worker in others)
    facts = (
        f"{counted(len(overview.queues), 'queue')}, "
        f"{counted(len(others), 'worker')}, {running}/{slots} slots"
    )
    gap = width - line.cell_len - len(facts)
    return line.append(" " * max(2, gap) + facts, "dim")


def _problems(found: Sequence[Problem], width: int, most: int) -> list[Text]:
    shown = found if len(found) <= most else found[: most - 1]
    lines = [_problem(problem, width) for problem in shown]
    if left := found[len(shown) :]:
        # What is over, or has not lasted long enough, is no problem.
        now = sum(one.state == "holds" for one in left)
        others = len(left) - now
        more = [counted(now, "more problem")] * bool(now)
        more += [f"{others:,} over or not counted yet"] * bool(others)
        lines.append(Text(f"  and {', '.join(more)}: forebay status", "dim"))
    return lines or [Text.assemble(("✓ ", "bold green"), "nothing to do")]


def _problem(problem: Problem, width: int) -> Text:
    mark, style = MARKS.get(problem.state) or SEVERITIES[problem.severity]
    line = Text.assemble((f"{mark} {problem.code}", style))
    place = problem.name.removeprefix(problem.code).lstrip()
    if place:
        line.append(f" {cut_middle(place, max(16, width // 3))}", "bold")
    state = state_of(problem)
    cause = replaced_controls(problem.cause).replace("\n", " ")
    line.append(f": {state}: {cause}" if state else f": {cause}")
    return line


def _queues(overview: Overview, view: View, width: int) -> list[Text]:
    if not overview.queues:
        return [Text("queue", _HEAD), Text("No queues.", "dim")]
    columns = [column for column in _COLUMNS if width >= column.width]
    rows = [(q, [column.text(q) for column in columns]) for q in _in_order(overview, view.sort)]
    sizes = [
        max(len(column.name), *(len(cells[place]) for _, cells in rows))
        for place, column in enumerate(columns)
    ]
    rest = max(8, width - sum(size + 2 for size in sizes))
    longest = max(cell_len(_name(queue)) for queue, _ in rows)
    rest = min(rest, max(12, longest + 2))
    lines = [_queues_head(columns, sizes, rest, view.sort)]
    for queue, cells in rows:
        name = cut_middle(_name(queue), rest - 2)
        line = Text.assemble((f"{_mark(queue)} ", "bold yellow"), (name, "bold"))
        line.append(" " * (rest - 2 - cell_len(name)))
        for column, size, cell in zip(columns, sizes, cells, strict=True):
            line.append("  " + cell.rjust(size), "dim" if cell == "-" else column.style)
        lines.append(line)
    # A wide terminal has a column with the state.
    marks = {} if width >= 140 else {_mark(queue): _state(queue) for queue, _ in rows}
    legend = [f"{mark} {marks[mark]}" for mark in "‖!" if mark in marks]
    if cancelled := sum(queue.cancelled for queue, _ in rows):
        legend.append(f"{cancelled:,} cancelled, not passed yet")
    if legend:
        lines.append(Text("  ".join(legend), "dim"))
    return lines


def _queues_head(columns: list[_Column], sizes: list[int], rest: int, sort: str) -> Text:
    head = Text("  queue".ljust(rest), _HEAD + (" underline" if sort == "name" else ""))
    for column, size in zip(columns, sizes, strict=True):
        head.append("  " + " " * (size - len(column.name)))
        sorted_by = column.name == _SORTED.get(sort)
        head.append(column.name, "bold underline" if sorted_by else _HEAD)
    return head


def _in_order(overview: Overview, sort: str) -> list[QueueLoad]:
    orders: dict[str, Callable[[QueueLoad], float]] = {
        "ready": lambda q: q.ready,
        "rate": lambda q: q.claims_per_second or 0.0,
        "oldest": lambda q: q.oldest_ready_seconds or 0.0,
        "dead": lambda q: q.dead,
        "name": lambda _: 0.0,
    }
    return sorted(overview.queues, key=lambda q: (-orders[sort](q), q.queue, q.group))


def _name(queue: QueueLoad) -> str:
    return queue.queue if queue.group == "default" else f"{queue.queue}/{queue.group}"


def _mark(queue: QueueLoad) -> str:
    """Return the sign of the state, or a space."""
    return {"paused": "‖", "no worker": "!", "": " "}[_state(queue)]


def _state(queue: QueueLoad) -> str:
    if queue.is_paused:
        return "paused"
    return "no worker" if queue.ready and not queue.is_served else ""


def _workers(workers: Sequence[WorkerLoad], width: int) -> list[Text]:
    if not workers:
        return []
    bar = 10 if width < 120 else 30
    size = max(16, min(max(cell_len(w.worker) for w in workers), width - bar - 32))
    lines = [Text((
            f"  {'worker'.ljust(size)}  "
            f"{'slots'.ljust(bar + 11)}heartbeat"
            ) + "   memory  app" * (width >= 110), _HEAD)]  # fmt: skip
    for worker in sorted(workers, key=lambda w: (w.is_alive, -w.running, w.worker)):
        name = cut_middle(worker.worker, size)
        filled = round(bar * min(1.0, worker.running / (worker.slots or 1)))
        line = Text.assemble(("  " if worker.is_alive else "✗ ", "bold red"), name)
        line.append(" " * (size - cell_len(name) + 2))
        line.append("█" * filled, "cyan").append("░" * (bar - filled), "dim")
        line.append(f" {worker.running}/{worker.slots or '?'}".ljust(11))
        line.append(
            _short(worker.heartbeat_seconds).rjust(9), "" if worker.is_alive else "bold red"
        )
        if width >= 110:
            memory = "-" if worker.memory_bytes is None else human_bytes(worker.memory_bytes)
            line.append(f"{memory:>9}  {cut_middle(worker.app or '-', 30)}", "dim")
        lines.append(line)
    return lines


def _keys(keys: Sequence[KeyInfo], width: int) -> list[Text]:
    if not keys:
        return []
    size = max(12, width // 5)
    now = datetime.now(UTC)
    lines = [Text(f"  {'key that waits'.ljust(size)}  {'queue'.ljust(size)}  waiting  why", _HEAD)]
    for key in keys:
        name, queue = cut_middle(key.key, size), cut_middle(key.queue, size)
        line = Text(
                f"  {name}{' ' * (size - cell_len(name))}  "
                f"{queue}{' ' * (size - cell_len(queue))}"
                )  # fmt: skip
        line.append(f"  {_count(key.waiting):>7}", "yellow")
        line.append(f"  {replaced_controls(key_answer(key, now))}".replace("\n", "␊"), "dim")
        lines.append(line)
    return lines


def _cut(lines: list[Text], rows: int, noun: str) -> list[Text]:
    if len(lines) <= rows:
        return lines
    return [*lines[: rows - 1], Text(f"  and {len(lines) - rows + 1:,} more {noun}", "dim")]


def _count(number: int) -> str:
    if not number:
        return "-"
    if number < 10_000:
        return f"{number:,}"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            value = number / size
            return f"{value:.1f}{unit}" if value < 100 else f"{value:.0f}{unit}"
    raise AssertionError(number)


def _rate(number: float | None) -> str:
    if number is None or number == 0:
        return "-"
    return f"{number:.2g}" if number < 10 else f"{number:,.0f}"


def _counted(queue: QueueLoad, number: float | None) -> str:
    """Return a rate of what is counted by folds; ``?`` until two of them are known."""
    return "?" if number is None and queue.claims_per_second is not None else _rate(number)


def _short(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return human_duration(seconds if seconds < 60 and seconds < 10 else round(seconds))
