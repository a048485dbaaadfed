"""Clients: one behaviour, asynchronous and synchronous."""

import importlib
from typing import TYPE_CHECKING, Any

from forebay.client._address import address_of

if TYPE_CHECKING:
    from forebay.client._async.client import AsyncClient, abackfill
    from forebay.client._sync.client import Client, backfill

__all__ = ["AsyncClient", "Client", "abackfill", "address_of", "backfill"]

if not TYPE_CHECKING:  # a type checker would accept any attribute of the module

    def __getattr__(name: str) -> Any:
        """Import on first use: workers and most producers need no client."""
        if name in ("AsyncClient", "abackfill"):
            found = getattr(importlib.import_module("forebay.client._async.client"), name)
        elif name in ("Client", "backfill"):
            found = getattr(importlib.import_module("forebay.client._sync.client"), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found
