"""Write the record of a part of the nightly run: FOLDER.json from the records of its suites in
FOLDER.

python scripts/_record.py FOLDER BEGAN PART STATUS SECONDS
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Write it, print it in a line, and remove the folder."""
    folder, began, part, status, seconds = sys.argv[1:]
    commit, *changed = [
        subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
        for words in (["rev-parse", "HEAD"], ["status", "--porcelain"])
    ]
    suites = {file.stem: json.loads(file.read_text()) for file in sorted(Path(folder).iterdir())}
    record = {
        "part": part,
        "began": began,
        "commit": commit,
        "is_commit_changed": changed != [""],
        "seed": int(os.environ["FOREBAY_TESTS_SEED"]),
        "passed": status == "0",
        "seconds": int(seconds),
        "suites": suites,
    }
    Path(f"{folder}.json").write_text(json.dumps(record, indent=2) + "\n")
    shutil.rmtree(folder)
    sys.stdout.write(f"record: {folder}.json\n")


if __name__ == "__main__":
    main()
