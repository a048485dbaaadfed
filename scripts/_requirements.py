"""Print the requirements of an extra, with the versions and hashes of uv.lock, for pip.

    python scripts/_requirements.py dev > requirements.txt && pip install --require-hashes --no-deps
    -r requirements.txt

Of an environment without uv: pip alone would install the newest versions, whatever they are by now.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

#: What builds both distributions; installed like the rest, so that the build downloads nothing.
_BUILDS = ("hatchling", "editables")


def requirements(lock: dict[str, Any], roots: list[tuple[str, str]]) -> list[str]:
    """Return a line for each package that roots, a name and an extra each, need.

    The roots are left out.
    """
    packages: dict[str, list[dict[str, Any]]] = {}
    for package in lock["package"]:
        packages.setdefault(package["name"], []).append(package)
    #: By name and version: the markers under which it is needed; an empty one is always true.
    needed: dict[tuple[str, str], set[str]] = {}
    seen: set[tuple[str, str, str, str]] = set()
    waiting = [({"name": name, "extra": [extra]}, "") for name, extra in roots]
    waiting += [({"name": name}, "") for name in _BUILDS]
    while waiting:
        wanted, above = waiting.pop()
        # Two markers of a path: both must hold.
        marker = " and ".join(f"({one})" for one in (above, wanted.get("marker", "")) if one)
        for package in packages[wanted["name"]]:
            if package["version"] != wanted.get("version", package["version"]):
                continue
            if "editable" not in package["source"]:
                needed.setdefault((package["name"], package["version"]), set()).add(marker)
            for extra in ["", *wanted.get("extra", ())]:
                place = (package["name"], package["version"], extra, marker)
                if place not in seen:
                    seen.add(place)
                    below = package.get("optional-dependencies", {}).get(extra, ())
                    waiting += [
                        (one, marker)
                        for one in (below if extra else package.get("dependencies", ()))
                    ]
    by_version = {(p["name"], p["version"]): p for p in lock["package"]}
    lines = []
    for (name, version), markers in sorted(needed.items()):
        package = by_version[name, version]
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else [])]
        hashes = " ".join(f"--hash={file['hash']}" for file in files)
        when = "" if "" in markers else " ; " + " or ".join(f"({one})" for one in sorted(markers))
        lines.append(f"{name}=={version}{when} {hashes}")
    return lines


def main() -> None:
    """Print the lines; the extras test and dev include the distribution in bench."""
    extra = sys.argv[1]
    lock = tomllib.loads((Path(__file__).parents[1] / "uv.lock").read_text())
    roots = [("forebay", extra)]
    if extra in ("test", "dev"):
        roots.append(("forebay-bench", ""))
    sys.stdout.write("".join(f"{line}\n" for line in requirements(lock, roots)))


if __name__ == "__main__":
    main()
