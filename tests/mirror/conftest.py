"""A stand-in for either search server, for the tests of its target."""

import pytest

from tests.support.search_engine import SearchEngine


@pytest.fixture(params=["elasticsearch", "opensearch"])
def engine(request):
    return SearchEngine(request.param)


@pytest.fixture
def url(engine):
    with engine.running() as url:
        yield url
