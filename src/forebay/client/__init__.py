"""Clients: one behaviour, asynchronous and synchronous."""

from forebay.client._address import address_of
from forebay.client._async import AsyncClient
from forebay.client._sync import Client

__all__ = ["AsyncClient", "Client", "address_of"]
