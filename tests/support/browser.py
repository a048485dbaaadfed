"""A headless Chromium for tests, spoken to over a pipe in its DevTools protocol.

Nothing but the browser is needed.

https://chromedevtools.github.io/devtools-protocol/ has the methods. Whatever goes wrong in the page
(an uncaught exception, ``console.error``, a refused or missing resource) is kept in ``problems``.
"""

import base64
import itertools
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tests.support.waiting import wait_for

_OPTIONS = [
    *("--headless", "--remote-debugging-pipe", "--no-sandbox", "--no-first-run",
        "--hide-scrollbars"),
    *("--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
        "--disable-sync"),
    *("--disable-component-update", "--disable-default-apps", "--disable-extensions"),
]  # fmt: skip

#: The browser reads from descriptor 3 and writes to 4.
_LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""

_SECONDS = 20

#: For one call of the protocol: a page with a preview of very many jobs may take 30 s.
_CALL_SECONDS = 60


def find_chromium() -> str | None:
    """Return the path of a Chromium, if there is one."""
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


class Page:
    """One tab."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser = browser
        self._session = session
        self.problems: list[str] = []

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        return self._browser.send(method, self._session, **params)

    def go(self, address: str) -> None:
        """Open an address; what is to be seen there is to be waited for."""
        self.send("Page.navigate", url=address)

    def value(self, expression: str) -> Any:
        """Return what an expression of JavaScript gives, a promise's result too."""
        found = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True,
            userGesture=True,
        )  # fmt: skip
        if "exceptionDetails" in found:
            raise AssertionError(f"{expression}: {_said(found['exceptionDetails'])}")
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = _SECONDS) -> Any:
        """Wait until an expression is true."""
        return wait_for(lambda: self._look(expression), seconds, lambda: self._state(expression))

    def _look(self, expression: str) -> Any:
        """Return what an expression gives; None while the page leads to another one."""
        try:
            return self.value(expression)
        except AssertionError as error:
            if "Inspected target navigated" in str(error):
                return None
            raise

    def see(self, text: str, where: str = "body") -> None:
        """Wait until a text is to be read."""
        found = (
            f"[...document.querySelectorAll({json.dumps(where)})].some(e => "
            f"e.innerText.includes({json.dumps(text)}))"
        )
        self.wait(found)

    def click(self, selector: str) -> None:
        """Click into the middle of an element, with the mouse."""
        quoted = json.dumps(selector)
        self.wait(f"document.querySelector({quoted}) !== null")
        self.value(
                f"document.querySelector({quoted}).scrollIntoView({{block: 'center', behavior: "
                f"'instant'}})"
                )  # fmt: skip
        # What is under the pointer stays: a page may leave it as it is until the pointer has gone.
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            if kind != "mouseReleased":
                x, y = self.value(
                    f"(() => {{ const b = document.querySelector({quoted}).getBoundingClientRect();"
                    " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
                )
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self.send("Input.insertText", text=text)

    def press(self, key: str, *, code: int = 0, text: str = "", modifiers: int = 0) -> None:
        """Press a key and let it go."""
        event = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
        self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def screenshot(self, path: Path) -> None:
        """Write a picture of what is to be seen."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Give the tab a size, and a colour scheme."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def notice(self, method: str, params: dict[str, Any]) -> None:
        """Take an event; what is a problem is kept."""
        if method == "Runtime.exceptionThrown":
            self.problems.append(_said(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(
                str([arg.get("value", arg.get("description")) for arg in params["args"]])
            )
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            entry = params["entry"]
            self.problems.append(f"{entry['text']} {entry.get('url', '')}")

    def _state(self, expression: str) -> str:
        shown = self.value("document.body.innerText.slice(0, 1500)")
        return f"{expression} is not true; problems: {self.problems}; to be read:\n{shown}"


class Browser:
    """A running Chromium."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="chromium-")
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _LAUNCH, str(to_read), str(to_write), program),
                *(*_OPTIONS, f"--user-data-dir={self._folder}", "about:blank"),
            ],
            pass_fds=(to_read, to_write),
            env=os.environ | {"HOME": self._folder},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)  # it ends when nobody speaks to it any more
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        self._reader.join(5)
        os.close(self._from)
        shutil.rmtree(self._folder, ignore_errors=True)

    def page(self) -> Page:
        """Open a tab."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            page.send(f"{domain}.enable")
        page.resize(1440, 900)
        return page

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        answers: queue.Queue[dict[str, Any]] = queue.Queue()
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        with self._lock:
            self._answers[number] = answers
            os.write(self._to, json.dumps(message).encode() + b"\0")
        answer = answers.get(timeout=_CALL_SECONDS)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> None:
        rest = b""
        while data := os.read(self._from, 1 << 16):
            *messages, rest = (rest + data).split(b"\0")
            for message in map(json.loads, messages):
                if (answers := self._answers.pop(message.get("id"), None)) is not None:
                    answers.put(message)
                elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
                    page.notice(message["method"], message["params"])


def _said(details: dict[str, Any]) -> str:
    return str(details.get("exception", {}).get("description") or details.get("text"))


@contextmanager
def chromium() -> Iterator[Browser | None]:
    """Run a Chromium; None where there is none."""
    program = find_chromium()
    if program is None:
        yield None
        return
    with Browser(program) as browser:
        yield browser
