"""The targets of this library; each module describes what it needs from its store."""

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
