"""The targets that come with the library: what each asks of its store is in its own module."""

from forebay.mirror.targets._dual import DualTarget
from forebay.mirror.targets._elasticsearch import ElasticsearchTarget
from forebay.mirror.targets._groonga import GroongaTarget
from forebay.mirror.targets._postgres import PostgresTarget
from forebay.mirror.targets._sqlite import SQLiteTarget

__all__ = [
    "DualTarget",
    "ElasticsearchTarget",
    "GroongaTarget",
    "PostgresTarget",
    "SQLiteTarget",
]
