"""The commands of hints that name an application.

The database knows an application by what its workers said of themselves, so the text is checked
before it becomes part of a command that a person copies.

Shown by: tests/unit/test_watch_commands.py, tests/cli/test_status.py.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME: Final = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_ADDRESS: Final = re.compile(f"{_NAME}:{_NAME}", re.ASCII)


def app_place(said: str | None) -> str:
    """Return the address of an application, such as ``shop.jobs:app``, for a command.

    Args:
        said: what a worker reported. What has another form, and None, is ``MODULE:APP``, the word
            of the command line for it.
    """
    return said if said is not None and _ADDRESS.fullmatch(said) else "MODULE:APP"


def known_app(data: Mapping[str, Any], queue: str | None = None, group: str = "default") -> str:
    """Return the application that served a queue last, for a command.

    Args:
        data: what ``forebay.measurements()`` returned.
        queue: None is any, and then only an application that is the only one is sure.
        group: its group.
    """
    if queue is None:
        found = {app["app"] for app in data["apps"]}
        return app_place(found.pop() if len(found) == 1 else None)
    for app in data["apps"]:
        if app["group"] == group and queue in app["queues"]:
            return app_place(app["app"])
    return app_place(None)


def worker_command(place: str, queue: str | None = None, group: str = "default") -> str:
    """Return the command that starts a worker.

    Args:
        place: of its application, from ``app_place`` or ``known_app``.
        queue: the queue that it must serve; None: all that the application has handlers for.
        group: the group that it must serve.
    """
    command = f"forebay worker {place}"
    if queue is not None:
        command += f" --queue {shlex.quote(queue)}"
    return command if group == "default" else f"{command} --group {shlex.quote(group)}"
