"""The account that runs the server, and the place of its files.

PostgreSQL refuses to run as root and must own its data folder. An ordinary user runs the server
under the user's account. Root runs it as ``nobody``, which every system has: creating an account
would change the machine. ``nobody`` cannot enter a private home, so root keeps the server's files
elsewhere.
"""

from __future__ import annotations

import os
import pwd
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Final

from forebay._dataclass import dataclass
from forebay.errors import ServerStartError

#: Variables that the server's programs get; a variable whose name begins with one of the prefixes
#: as well.
_VARIABLES: Final = ("PATH", "TZ", "TMPDIR")
_VARIABLE_PREFIXES: Final = ("LD_", "DYLD_")


@dataclass(frozen=True, slots=True)
class Owner:
    """The account that runs the server.

    ``is_other_account`` when it is not the caller's account.
    """

    name: str
    uid: int
    gid: int
    is_other_account: bool

    @classmethod
    def current(cls) -> Owner:
        """Return the caller, or ``nobody`` when the caller is root."""
        is_other_account = os.geteuid() == 0
        try:
            entry = pwd.getpwnam("nobody") if is_other_account else pwd.getpwuid(os.geteuid())
        except KeyError:
            missing = "user nobody" if is_other_account else f"name for user id {os.geteuid()}"
            raise ServerStartError(
                f"the password file has no {missing}",
                hint="PostgreSQL needs a named user other than root: run as such a user.",
            ) from None
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid, is_other_account)

    def popen_arguments(self) -> dict[str, Any]:
        """Return the arguments that make ``subprocess`` run a program as this account."""
        if not self.is_other_account:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def environment(self) -> dict[str, str]:
        """Return the environment for the server's programs.

        Other processes of the server's account can read it, so it holds nothing of the caller's
        except where to find programs and libraries.
        """
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in _VARIABLES or name.startswith(_VARIABLE_PREFIXES)
        }
        return {"PATH": "/usr/bin:/bin", **kept, "LC_ALL": "C"}

    def signal(self, pids: Iterable[int], number: signal.Signals) -> None:
        """Send a signal to processes as this account; processes that have ended are ignored.

        The process ids come from a file that the account can write. So the caller's rights must not
        apply: a process of another account is not reached.
        """
        if not self.is_other_account:
            for pid in pids:
                try:
                    os.kill(pid, number)
                except (ProcessLookupError, PermissionError):
                    pass
            return
        name = number.name.removeprefix("SIG")
        subprocess.run(
            ["/bin/sh", "-c", 'for pid; do kill -s "$0" "$pid"; done', name, *map(str, pids)],
            check=False,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=self.environment(),
            **self.popen_arguments(),
        )

    def open_file(self, path: Path, mode: str) -> IO[Any]:
        """Open a file in a folder where this account may write.

        The file is created if ``mode`` allows it.

        Root must not be led to another file. So a link, a second name of a file, a pipe or a file
        of a third account is refused, before anything is read or truncated.

        Args:
            path: the file.
            mode: as for ``open``: ``r``, ``w`` or ``a``, with ``b`` for bytes.

        Raises:
            FileNotFoundError: the file does not exist, and ``mode`` is ``r``.
            ServerStartError: it is not a regular file of the server.
        """
        flags = {
            "r": os.O_RDONLY,
            "w": os.O_WRONLY | os.O_CREAT,
            "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
        }[mode[0]]
        try:
            # Without O_NONBLOCK, opening a pipe would wait for its other end.
            descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._not_ours(path) from error
        try:
            found = os.fstat(descriptor)
            if (
                not stat.S_ISREG(found.st_mode)
                or found.st_nlink != 1
                or found.st_uid not in (self.uid, os.geteuid())
            ):
                raise self._not_ours(path)
            if mode[0] == "w":
                os.ftruncate(descriptor, 0)
        except BaseException:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, mode, errors=None if "b" in mode else "replace")

    def _not_ours(self, path: Path) -> ServerStartError:
        return ServerStartError(
            f"{path.name} is not a regular file of user {self.name} with one name",
            folder=str(path.parent),
            hint="Remove it, or use another data folder.",
        )

    def make_folder(self, path: Path) -> None:
        """Create a folder that only this account (and root) may enter."""
        path.mkdir(mode=0o700)
        if self.is_other_account:
            os.chown(path, self.uid, self.gid)

    def can_enter(self, path: Path) -> bool:
        """Whether this account can enter ``path`` and all its parents."""
        probe = subprocess.run(
            ["/bin/sh", "-c", 'test -x "$1"', "sh", path],
            check=False,
            cwd="/",
            **self.popen_arguments(),
        )
        return probe.returncode == 0


def state_folder(owner: Owner) -> Path:
    """Return the folder for files that outlive one command; create it if it is missing.

    ``$XDG_CACHE_HOME/forebay`` or ``~/.cache/forebay``; if that is not writable, or the server's
    account cannot enter it (root's home), ``/var/tmp/forebay-<uid>``.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    if owner.can_enter(existing):
        preferred = cache / "forebay"
        try:
            preferred.mkdir(parents=True, exist_ok=True)
        except OSError:
            pass  # the home is not writable: use the fallback
        else:
            if os.access(preferred, os.W_OK) and owner.can_enter(preferred):
                return preferred
    fallback = Path("/var/tmp") / f"forebay-{os.geteuid()}"  # noqa: S108  its owner is checked
    try:
        fallback.mkdir(mode=0o700)
        fallback.chmod(0o711)  # the account nobody must pass; repeated because of the umask
    except FileExistsError:
        pass
    # Every user of the machine can predict the name, so check the owner.
    found = fallback.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ServerStartError(
            f"{fallback} is not a private folder of user id {os.geteuid()}",
            hint="Remove it, or set XDG_CACHE_HOME to a folder that you own.",
        )
    return fallback


def temporary_parent(owner: Owner) -> Path:
    """Return the first usual folder for temporary files that the server's account can enter."""
    for candidate in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108  mkdtemp follows
        if owner.can_enter(Path(candidate)):
            return Path(candidate)
    raise ServerStartError(
        f"user {owner.name} can enter no folder for temporary files",
        hint="Set TMPDIR to a folder that this user can enter.",
    )
