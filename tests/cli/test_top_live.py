"""forebay top in a terminal: it reads again and again, and obeys its keys."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from tests.support.engine import connect, enqueue
from tests.support.waiting import wait_for

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal of a size with ``forebay top`` in it; ``screen`` is what it shows."""

    def __init__(self, dsn, width=80, height=24):
        self._master, slave = pty.openpty()
        self.resize(width, height)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forebay", "top", "--every", "0.1", "--dsn", dsn],
            stdin=slave, stdout=slave, stderr=slave, env=environment | {"TERM": "xterm-256color"},
            start_new_session=True,
        )  # fmt: skip
        self._seen = ""

    def resize(self, width, height):
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def press(self, key):
        os.write(self._master, key.encode())

    def read(self):
        """Take in what was written within a moment."""
        while select.select([self._master], [], [], 0.05)[0]:
            self._seen += os.read(self._master, 100_000).decode(errors="replace")

    @property
    def raw(self):
        self.read()
        return self._seen

    @property
    def screen(self):
        """The lines of the newest complete screen."""
        frames = self.raw.split("\x1b[H")
        complete = [frame for frame in frames if "q quit" in frame]
        return _ESCAPE.sub("", complete[-1]).replace("\r", "").split("\n") if complete else []

    def wait(self, text):
        wait_for(lambda: any(text in line for line in self.screen), 30, lambda: self.screen)

    def title(self):
        return self.screen[0]

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self.slave)


@pytest.fixture
def terminal(database, conn):
    enqueue(conn, queue="mail")
    found = Terminal(database)
    try:
        found.wait("mail")
        yield found
    finally:
        found.close()


@pytest.mark.slow
def test_it_shows_what_changes(terminal, conn):
    """The next read has the new queue; each screen fits the terminal, also after it was resized."""
    assert len(terminal.screen) == 24
    assert max(map(len, terminal.screen)) <= 80
    enqueue(conn, queue="a_queue_that_is_new")
    terminal.wait("a_queue_that_is_new")
    terminal.resize(200, 40)
    os.kill(terminal.process.pid, signal.SIGWINCH)
    terminal.wait("done/s")
    assert len(terminal.screen) == 40
    assert max(map(len, terminal.screen)) <= 200


@pytest.mark.slow
def test_keys_sort_pause_and_quit(terminal, conn):
    """s changes the order, p keeps the screen and p again continues.

    Q gives the terminal back as it was.
    """
    terminal.wait("s sort (ready)")
    terminal.press("s")
    terminal.wait("s sort (rate)")
    terminal.press("x")  # Other keys do nothing.
    terminal.press("p")
    terminal.wait("p resume")
    title = terminal.title()
    assert "paused" in title
    enqueue(conn, queue="later")
    time_of_pause = title.split()[2]
    wait_for(lambda: time.strftime("%H:%M:%S") > time_of_pause)
    terminal.press("s")
    terminal.wait("s sort (oldest)")
    assert terminal.title() == title
    assert not any("later" in line for line in terminal.screen)
    terminal.press("p")
    terminal.wait("later")
    terminal.press("q")
    wait_for(lambda: (terminal.read(), terminal.process.poll())[1] is not None)
    assert terminal.process.returncode == 0
    assert termios.tcgetattr(terminal.slave) == terminal.before
    assert "\x1b[?1049h" in terminal.raw
    assert terminal.raw.rstrip().endswith(("\x1b[?1049l", "\x1b[?25h"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_gives_the_terminal_back(terminal, number):
    """The main screen is shown again, with its cursor."""
    os.kill(terminal.process.pid, number)
    wait_for(lambda: (terminal.read(), terminal.process.poll())[1] is not None)
    assert terminal.process.returncode == 0
    assert "\x1b[?1049l" in terminal.raw
    assert termios.tcgetattr(terminal.slave) == terminal.before


@pytest.mark.slow
def test_a_database_that_goes_away_leaves_the_last_screen(own_server, own_database):
    """The title says why; when the server is back, reads continue."""
    with connect(own_database) as conn:
        enqueue(conn, queue="mail")
    terminal = Terminal(own_database)
    try:
        terminal.wait("mail")
        own_server.stop()
        wait_for(
            lambda: re.search(r"every 0\.1 s  \S", terminal.title()), 30, lambda: terminal.screen
        )
        assert any("mail" in line for line in terminal.screen)
        own_server.start()
        with connect(own_database) as conn:
            enqueue(conn, queue="afterwards")
        terminal.wait("afterwards")
        assert not re.search(r"every 0\.1 s  \S", terminal.title())
    finally:
        terminal.close()
