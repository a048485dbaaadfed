"""Find the application that ``module:attribute`` names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from forebay._error import is_database_error
from forebay.errors import ConfigError, ForebayError, shown

if TYPE_CHECKING:
    from forebay.app import App

#: The folder of this library.
_PACKAGE = str(Path(__file__).resolve().parents[1])

_FORM = "Write module:attribute, as in `forebay worker shop.jobs:app`."


def check_place(place: str, folder: Path | None = None) -> tuple[str, str]:
    """Return the names of module and attribute, without importing the module itself.

    Raises:
        ConfigError: as ``load_app``, as far as it shows without the import.
    """
    module_name, _, attribute = place.partition(":")
    attribute = attribute or "app"
    if module_name.endswith(".py") or "/" in module_name:
        raise ConfigError("app", f"is {shown(place)}, a file", value=place, hint=_FORM)
    if not all(part.isidentifier() for part in f"{module_name}.{attribute}".split(".")):
        raise ConfigError("app", f"is {shown(place)}, not a module and a name", hint=_FORM)
    if folder is not None and not is_folder(folder):
        raise ConfigError("--app-dir", f"is {shown(str(folder))}, not a folder", value=str(folder))
    here = str((folder or Path.cwd()).resolve())
    if here not in sys.path:
        sys.path.insert(0, here)
    if not _exists(module_name):
        raise ConfigError(
            "app",
            f"names module {module_name}, which does not exist",
            value=place,
            hint=(
                f"Looked in {here} (--app-dir names another folder) and the installed "
                f"packages. {_FORM}"
            ),
        )
    return module_name, attribute


def load_app(place: str, folder: Path | None = None) -> tuple[App, tuple[str, str, bool]]:
    """Return an application, and where a child process finds it.

    Args:
        place: module and attribute.
        folder: where modules are looked for first. None: the current folder, as with ``python -m``.

    Raises:
        ConfigError: the module or attribute does not exist, cannot be imported, or is not an
            application.
    """
    from forebay.app import App, Jobs

    module_name, attribute = check_place(place, folder)
    found: object = _imported(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                "app", f"names {attribute}, which module {module_name} does not have", hint=_FORM
            )
        found = getattr(found, part)
    if not isinstance(found, App):
        hint = "Name the App that includes it." if isinstance(found, Jobs) else _FORM
        raise ConfigError(
            "app", f"names {place}, which is {shown(found)} and not a forebay.App", hint=hint
        )
    return found, (module_name, attribute, False)


def _imported(module_name: str) -> object:
    """Import the module of an application. What it raises is shown with the frames of the user's
    files, and without those of the import system and of this library.
    """
    try:
        return importlib.import_module(module_name)
    except ForebayError:
        raise
    except Exception as error:
        if is_database_error(error):
            raise
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith((f"{_PACKAGE}{os.sep}", "<frozen importlib"))
            and Path(frame.filename) != Path(importlib.__file__)
        ]
        *before, last = traceback.format_exception_only(error)
        ours = ConfigError(
            "app", f"names module {module_name}, which cannot be imported: {last.strip()}"
        )
        ours.detail = "".join([*traceback.format_list(frames), *before]).rstrip() or None
        raise ours from error


def _exists(module_name: str) -> bool:
    # An ImportError raised inside a parent of the module is a mistake of that one.
    try:
        return importlib.util.find_spec(module_name) is not None
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            return False
        raise


def is_folder(path: Path) -> bool:
    """Whether a path is that of a folder; one that cannot be a path is not."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
