"""Install built distributions elsewhere, and use them as a newcomer would.

    .venv/bin/python tools/try_release.py dist [--python 3.12]

`uv` makes an environment in a temporary folder and installs the wheels of `dist` there, with the
newest versions of what they need. Nothing of the checkout is on its path. Then the commands run,
and the program of the README on the bundled PostgreSQL.
"""

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

_README = Path(__file__).resolve().parents[1] / "README.md"


#: What runs in the new environment: on a temporary server, and not on that of `forebay dev`, which
#: the projects of a user share.
_RUN = """
import os, subprocess, sys
from forebay.embedded import temporary_server

with temporary_server() as server:
    environment = os.environ | {"FOREBAY_DATABASE_URL": server.dsn("postgres")}
    for command in ([sys.executable, "shop.py"], ["forebay", "status"]):
        subprocess.run(command, check=True, env=environment)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dist", type=Path, help="the folder with the built wheels")
    parser.add_argument("--python", default="3.11", help="the version of Python to try")
    options = parser.parse_args()
    wheels = [str(each.resolve()) for each in sorted(options.dist.glob("*.whl"))]
    if not wheels:
        parser.error(f"{options.dist} has no wheel; run: uv build --out-dir {options.dist}")
    with tempfile.TemporaryDirectory() as folder:
        _try(Path(folder), wheels, options.python)
    print(f"{len(wheels)} wheels work with Python {options.python}")


def _try(folder: Path, wheels: list[str], python: str) -> None:
    environment = {
        "PATH": f"{folder / 'env/bin'}:/usr/bin:/bin",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
    }

    def run(*command: str) -> str:
        print("$", *command, flush=True)
        return subprocess.run(
            command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    for command in (
        ["uv", "venv", "--quiet", "--python", python, str(folder / "env")],
        ["uv", "pip", "install", "--quiet", "--python", str(folder / "env/bin/python"), *wheels],
    ):
        subprocess.run(command, cwd=folder, env=os.environ, check=True)
    for wheel in wheels:
        _, version, *_ = Path(wheel).name.split("-")
        assert version in run("forebay", "--version"), version
    run("forebay", "--help")
    run("python", "-c", "import forebay, forebay.testing")
    found = re.search(
        r"^<!-- file: shop\.py -->\n```python\n(.*?)^```$",
        _README.read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert found, "the README has no shop.py"
    (folder / "shop.py").write_text(found[1], encoding="utf-8")
    (folder / "run.py").write_text(_RUN, encoding="utf-8")
    said = run("python", "run.py")
    assert "welcome, user 1" in said, said


if __name__ == "__main__":
    main()
