"""One resolver: default < [tool.forebay] or forebay.toml < FOREBAY_<NAME> < flag."""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from forebay._dataclass import dataclass
from forebay.config._settings import (
    DATABASE_GROUPS,
    GROUPS,
    DeliverySettings,
    PayloadSettings,
    RetentionSettings,
    RetrySettings,
    SegmentSettings,
    WorkerSettings,
    declared_settings,
)
from forebay.errors import ConfigError, shown

DEFAULT: Final = "default"
_PREFIX: Final = "FOREBAY_"
_NOT_SETTINGS: Final = frozenset({"FOREBAY_DATABASE_URL", "FOREBAY_PG_BIN"})


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One line of ``forebay config``."""

    name: str
    value: object
    source: str
    default: object
    meaning: str


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options of one file, as written."""

    path: Path
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, each with its source.

    Attributes:
        sources: per setting: ``default``, a file, an environment variable or ``--flag``.
        ignored: FOREBAY_ variables that are not settings, such as typos.
    """

    worker: WorkerSettings = field(default_factory=WorkerSettings)
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    retry: RetrySettings = field(default_factory=RetrySettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    payload: PayloadSettings = field(default_factory=PayloadSettings)
    segments: SegmentSettings = field(default_factory=SegmentSettings)
    sources: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def rows(self) -> list[SettingRow]:
        """Return every setting with its value and source, for display."""
        return [
            SettingRow(
                name=item.name,
                value=getattr(getattr(self, group), item.name),
                source=self.sources.get(item.name, DEFAULT),
                default=item.default,
                meaning=item.metadata["meaning"],
            )
            for group, cls in GROUPS.items()
            for item in declared_settings(cls)
        ]

    def database_values(self) -> dict[str, int]:
        """Return the database settings that are given in any source.

        Defaults are omitted: they must not overwrite what another process stored.
        """
        return {
            item.name: getattr(getattr(self, group), item.name)
            for group in DATABASE_GROUPS
            for item in declared_settings(GROUPS[group])
            if self.sources.get(item.name, DEFAULT) != DEFAULT
        }


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Return the settings of this process, from files, environment and flags.

    Args:
        flags: values by setting name; None for a flag that was not given.
        environ: default: the environment of the process.
        folder: where the search for a file begins. Default: the current folder.

    Raises:
        ConfigError: a value is invalid; the error names the setting and its source.
    """
    return resolve_settings(
        flags=flags or {},
        environ=os.environ if environ is None else environ,
        file=find_file_options(folder or Path.cwd()),
    )


def resolve_settings(
    *, flags: Mapping[str, Any], environ: Mapping[str, str], file: FileOptions | None = None
) -> Settings:
    """Return settings from the given sources; read no other.

    >>> settings = resolve_settings(flags={"concurrency": 4}, environ={"FOREBAY_CONCURRENCY": "2"})
    >>> settings.worker.concurrency, settings.sources["concurrency"]
    (4, '--concurrency')
    """
    hints = {
        item.name: typing.get_type_hints(cls)[item.name]
        for cls in GROUPS.values()
        for item in declared_settings(cls)
    }
    values: dict[str, Any] = {}
    sources = dict.fromkeys(hints, DEFAULT)

    def take(name: str, value: object, source: str) -> None:
        if name not in hints:
            raise _unknown(name, source, hints)
        values[name] = _typed(name, value, hints[name], source)
        sources[name] = source

    for name, value in (file.options if file else {}).items():
        take(name, value, str(file.path) if file else "")
    for name in hints:
        variable = _PREFIX + name.upper()
        if environ.get(variable):
            take(name, environ[variable], variable)
    for name, value in flags.items():
        if value is not None:
            take(name, value, "--" + name.replace("_", "-"))

    known = {_PREFIX + name.upper() for name in hints} | _NOT_SETTINGS
    ignored = sorted(name for name in environ if name.startswith(_PREFIX) and name not in known)
    try:
        return Settings(
            **{
                group: cls(
                    **{f.name: values[f.name] for f in declared_settings(cls) if f.name in values},
                    **({"given": frozenset(values)} if cls is WorkerSettings else {}),
                )
                for group, cls in GROUPS.items()
            },
            sources=sources,
            ignored=tuple(ignored),
        )
    except ConfigError as error:
        source = sources.get(error.field, DEFAULT)
        raise error.with_source(None if source == DEFAULT else source) from None


def find_file_options(folder: Path) -> FileOptions | None:
    """Return the options of the nearest file, from a folder upwards; None if there is none.

    The files are forebay.toml, and pyproject.toml with a table [tool.forebay].

    Raises:
        ConfigError: a file cannot be read, is not TOML, or both files of a folder have options.
    """
    for place in (folder, *folder.parents):
        own = _read_toml(place / "forebay.toml")
        project = _read_toml(place / "pyproject.toml")
        shared = _table(project, "tool", "forebay") if project is not None else None
        if own is not None and shared is not None:
            raise ConfigError(
                str(place / "forebay.toml"),
                "and [tool.forebay] in pyproject.toml beside it both have options",
                hint="Keep one of the two.",
            )
        if own is not None:
            return FileOptions(place / "forebay.toml", own)
        if shared is not None:
            return FileOptions(place / "pyproject.toml", shared)
    return None


def _read_toml(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_text(encoding="utf-8-sig")  # Editors of Windows begin with a mark.
        import tomllib  # noqa: PLC0415 - most folders have no such file

        return tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        # A parent folder without read permission has no options.
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(str(path), f"cannot be read: {error}") from None


def _table(document: dict[str, Any], *names: str) -> dict[str, Any] | None:
    current: Any = document
    for name in names:
        current = current.get(name) if isinstance(current, dict) else None
    return current if isinstance(current, dict) else None


def _typed(name: str, value: object, hint: Any, source: str) -> object:
    """Return a value in the type of its setting; text is parsed."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    wanted = next(option for option in options if option is not type(None))
    if isinstance(value, str) and wanted is not str:
        if type(None) in options and value.lower() == "none":
            return None
        try:
            return wanted(value)
        except ValueError:
            raise _wrong_type(name, value, wanted, source) from None
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise _wrong_type(name, value, wanted, source)
    return value


def _wrong_type(name: str, value: object, wanted: type, source: str) -> ConfigError:
    noun = {int: "a whole number", float: "a number", str: "text"}[wanted]
    return ConfigError(name, f"is {shown(value)}, not {noun}", value=value, source=source)


def _unknown(name: str, source: str, known: Mapping[str, Any]) -> ConfigError:
    import difflib  # noqa: PLC0415 - only for a hint

    hint = "`forebay config` lists the settings."
    if name in ("dsn", "database_url"):
        hint = "Set the database address by --dsn, FOREBAY_DATABASE_URL, DATABASE_URL or PG*."
    elif close := difflib.get_close_matches(name, known, n=1):
        hint = f"Did you mean {close[0]}?"
    return ConfigError(name, "is not a setting", source=source, hint=hint)
