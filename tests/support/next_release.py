"""The next release: this library with migrations of the kinds that will come, and code that
calls what they add.

Nothing was released yet, so the present library stands for the version before.
``tests/migration/next`` holds what a release after it may bring: columns, indexes, new bodies, a
new version of the protocol, a parameter more, a table that is split, and what is taken away at the
end.
"""

import re
import shutil
from pathlib import Path

from forebay.sql import latest_version

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "migration" / "next"


def next_migrations() -> list[tuple[str, str]]:
    """Return name and text of each migration that the next release adds."""
    return [
        (re.sub(r"^\d+_", "", file.stem), file.read_text(encoding="utf-8"))
        for file in sorted(FOLDER.glob("*.sql"))
    ]


def copy_library(folder: Path) -> Path:
    """Copy the library as it is; return the folder that belongs on ``PYTHONPATH``."""
    shutil.copytree(
        ROOT / "src" / "forebay",
        folder / "forebay",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return folder


def make_next_release(folder: Path) -> Path:
    """Write the next release into a folder; return the folder that belongs on ``PYTHONPATH``."""
    copy_library(folder)
    migrations = folder / "forebay" / "sql" / "migrations"
    migrations.mkdir(exist_ok=True)
    for number, (name, text) in enumerate(next_migrations(), latest_version() + 1):
        (migrations / f"{number:04}_{name}.sql").write_text(text, encoding="utf-8")
    protocol = folder / "forebay" / "ops" / "protocol.py"
    code = protocol.read_text(encoding="utf-8")
    assert "forebay.claim_v1(" in code
    protocol.write_text(code.replace("forebay.claim_v1(", "forebay.claim_v2("), encoding="utf-8")
    return folder
