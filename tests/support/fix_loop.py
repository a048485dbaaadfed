"""Async tests run on asyncio, which the worker is written for."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
