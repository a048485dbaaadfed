"""The example application on two databases, in this process and as its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Place:
    """Where the application has its annotations and its index."""

    dsn: str
    index: str

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("FOREBAY_", "ANNOTATIONS_"))
        }
        path = os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
        return kept | {
            "PYTHONPATH": path,
            "FOREBAY_DATABASE_URL": self.dsn,
            "ANNOTATIONS_INDEX_URL": self.index,
            "ANNOTATIONS_GRACE_SECONDS": "0.2",
            "ANNOTATIONS_INTERVAL_SECONDS": "0.1",
            "ANNOTATIONS_DEADLINE_SECONDS": "5",
        }


@pytest.fixture
def place(database: str, empty_database: str) -> Place:
    """A migrated database, and an empty one for the index."""
    return Place(database, empty_database)


@pytest.fixture
def served(place: Place) -> Iterator[str]:
    """The address of the running application: one command, with a worker inside and some pages
    loaded; it logs nothing.
    """
    said: list[str] = []
    with serving(place, said) as url:
        yield url
    assert said == [""]


@pytest.fixture
def served_with_failures(place: Place) -> Iterator[str]:
    """The same, for tests in which jobs fail, which is logged."""
    said: list[str] = []
    with serving(place, said) as url:
        yield url
    assert "(mirror.annotations)" in said[0]


@contextmanager
def serving(place: Place, said: list[str]) -> Iterator[str]:
    """Run the application; what it logs is added to the list."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "annotations", "--port", "0", "--pages", "30"],
        env=place.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            for line in process.stdout:
                if line.startswith("http"):
                    yield line.strip()
                    break
            else:
                pytest.fail(process.stderr.read())
        finally:
            process.terminate()
            said.append(process.stderr.read())
        process.wait(30)
