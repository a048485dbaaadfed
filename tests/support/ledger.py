"""The ledger of a run: what producers committed and what readers were handed, kept outside the
database.

It knows nothing of Forebay's tables: producers write down what they committed and what they rolled
back, readers what they were handed and which settlements were accepted. At the end both sides are
compared. Where workers run as processes, ``tests.support.writers`` fills in their side from what
their handlers wrote.
"""

import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """The ledger of one run. Entries are the numbers that producers put into their jobs."""

    groups: tuple[str, ...] = ("default",)
    committed: set[int] = field(default_factory=set)
    rolled_back: set[int] = field(default_factory=set)
    handed: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    ended: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    reruns_allowed: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    spans: dict[int, tuple[float, float]] = field(default_factory=dict)
    writing: set[int] = field(default_factory=set)
    """Committed entries whose handler writes a row in its own transaction."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0

    def draw(self, count: int) -> list[int]:
        """Give out numbers for jobs."""
        with self._lock:
            first = self._next
            self._next += count
        return list(range(first, first + count))

    def record_committed(self, entries: list[int], began_at: float) -> None:
        """Write down a transaction that committed: when it began and when that was known."""
        with self._lock:
            self.committed.update(entries)
            span = (began_at, time.monotonic())
            self.spans.update(dict.fromkeys(entries, span))

    def record_rolled_back(self, entries: list[int]) -> None:
        """Write down what was rolled back."""
        with self._lock:
            self.rolled_back.update(entries)

    def record_handed(self, group: str, entries: list[int]) -> None:
        """Write down what a claim handed out."""
        with self._lock:
            self.handed[group].update(entries)

    def record_ended(self, group: str, entries: list[int]) -> None:
        """Write down jobs whose end was accepted."""
        with self._lock:
            self.ended[group].update(entries)

    def record_rerun(self, group: str, entries: list[int]) -> None:
        """Write down jobs that may be handed out once more: given back, or held by a lost lease."""
        with self._lock:
            self.reruns_allowed[group].update(entries)

    def problems(self) -> dict[str, list[int]]:
        """Return what is wrong, by its name; empty when both sides agree."""
        found: dict[str, list[int]] = {}
        for group in self.groups:
            handed, ended = self.handed[group], self.ended[group]
            allowed = self.reruns_allowed[group]
            found |= {
                f"lost by {group}": sorted(self.committed - set(ended)),
                f"phantom in {group}": sorted(set(handed) - self.committed),
                f"ended twice in {group}": sorted(e for e, n in ended.items() if n > 1),
                f"run too often in {group}": sorted(
                    e for e, n in handed.items() if n > 1 + allowed[e]
                ),
            }
        return {name: entries for name, entries in found.items() if entries}

    def reruns(self, group: str = "default") -> int:
        """Return how many runs of a group were not the first of their job."""
        return sum(times - 1 for times in self.handed[group].values())

    def assert_clean(self) -> None:
        """Fail with what is wrong."""
        for group in self.groups:
            print(
                f"{group}: committed {len(self.committed)}, rolled back "
                f"{len(self.rolled_back)}, reruns"
                f" {self.reruns(group)} of {self.reruns_allowed[group].total()} sent back"
            )
        problems = {name: entries[:20] for name, entries in self.problems().items()}
        assert not problems, problems

    def order_violations(self, handed: list[int]) -> list[int]:
        """Return entries handed out after one whose transaction began after theirs had ended."""
        wrong, newest = [], float("-inf")
        for entry in handed:
            began, ended = self.spans[entry]
            if ended < newest:
                wrong.append(entry)
            newest = max(newest, began)
        return wrong
