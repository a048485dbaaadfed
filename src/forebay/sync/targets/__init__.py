"""The targets that come with the library: what each asks of its store is in its own module."""

from forebay.sync.targets._dual import DualTarget
from forebay.sync.targets._elasticsearch import ElasticsearchTarget
from forebay.sync.targets._groonga import GroongaTarget
from forebay.sync.targets._postgres import PostgresTarget
from forebay.sync.targets._sqlite import SQLiteTarget

__all__ = [
    "DualTarget",
    "ElasticsearchTarget",
    "GroongaTarget",
    "PostgresTarget",
    "SQLiteTarget",
]
