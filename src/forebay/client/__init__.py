"""Clients: one behaviour, asynchronous and synchronous."""

from forebay.client._address import address_of
from forebay.client._async.client import AsyncClient, abackfill
from forebay.client._sync.client import Client, backfill

__all__ = ["AsyncClient", "Client", "abackfill", "address_of", "backfill"]
