"""What an application's configuration of logging does to the loggers of this library."""

import ast
import io
import logging.config
from pathlib import Path

import pytest

import forebay
from forebay.model.text import lasting_logger

SOURCE = Path(forebay.__file__).parent

FILE = """
[loggers]
keys=root
[handlers]
keys=h
[formatters]
keys=
[handler_h]
class=NullHandler
args=()
[logger_root]
level=WARNING
handlers=h
"""


@pytest.fixture(autouse=True)
def root():
    """Restores what a configuration changes, for the loggers of other libraries, too."""
    before, level = list(logging.root.handlers), logging.root.level
    enabled = [
        made
        for made in logging.root.manager.loggerDict.values()
        if isinstance(made, logging.Logger) and not made.disabled
    ]
    yield
    logging.root.handlers[:] = before
    logging.root.setLevel(level)
    for made in enabled:
        made.disabled = False


@pytest.mark.parametrize(
    "configure",
    [
        lambda: logging.config.dictConfig({"version": 1}),
        lambda: logging.config.fileConfig(io.StringIO(FILE)),
    ],
    ids=["dictConfig", "fileConfig"],
)
def test_a_configuration_that_does_not_name_a_logger_does_not_silence_it(configure):
    """
    By default it disables all loggers that exist, and those of this library exist from the import
    on.
    """
    names = [
        name
        for name, made in logging.root.manager.loggerDict.items()
        if name.startswith("forebay.") and isinstance(made, logging.Logger)
    ]
    assert "forebay.worker" in names
    configure()
    assert [n for n in names if not logging.getLogger(n).isEnabledFor(logging.ERROR)] == []


def test_levels_and_other_classes_of_loggers_work_as_ever():
    class Own(logging.getLoggerClass()):
        pass

    logging.setLoggerClass(Own)
    try:
        made = lasting_logger("forebay.test_of_lasting_loggers")
    finally:
        logging.setLoggerClass(logging.Logger)
    assert isinstance(made, Own)
    made.setLevel(logging.CRITICAL)
    assert not made.isEnabledFor(logging.ERROR)
    logging.config.dictConfig({"version": 1, "loggers": {made.name: {"level": "ERROR"}}})
    assert made.isEnabledFor(logging.ERROR)


def test_every_logger_of_this_library_lasts():
    """
    ``logging.getLogger`` is called in one place, and for the level of all.
    """
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "getLogger"
    ]
    assert {place.rpartition(":")[0] for place in found} == {
        "model/text.py",
        "worker/ground/log_format.py",
    }, found
