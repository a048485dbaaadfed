"""One face for every kind of connection that a producer may have, to run one suite on all of them.

A driver begins a transaction as its library's users do, and hands its connection to Forebay. The
asynchronous ones live on a loop of their own, so that a test reads the same for all.
"""

import asyncio
from contextlib import contextmanager

import asyncpg
import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_async

from forebay import AsyncClient, Client
from forebay.testing import enqueued, enqueued_async


class RolledBack(Exception):
    """Leaves a savepoint."""


class Driver:
    """A synchronous connection, in a transaction of its own.

    Attributes:
        conn: what is handed to Forebay.
    """

    def __init__(self, dsn):
        self.dsn = dsn
        self.conn = None

    def close(self):
        pass

    def execute(self, sql):
        raise NotImplementedError

    def xid(self):
        """The number of the transaction."""
        return self.execute("select pg_current_xact_id()::text")

    def commit(self):
        self.conn.commit()

    def rollback(self):
        self.conn.rollback()

    @contextmanager
    def savepoint(self):
        """A savepoint that is rolled back at its end."""
        raise NotImplementedError
        yield

    def enqueue(self, handler, *args, **kwargs):
        return handler.enqueue(self.conn, *args, **kwargs)

    def enqueue_many(self, handler, items, **options):
        return handler.enqueue_many(self.conn, items, **options)

    def client(self, method, *args, **kwargs):
        return getattr(Client(), method)(*args, conn=self.conn, **kwargs)

    def enqueued(self):
        return enqueued(self.conn)


class Awaited(Driver):
    """The same, awaited on a loop of its own."""

    def __init__(self, dsn):
        super().__init__(dsn)
        self.runner = asyncio.Runner()
        self.wait = self.runner.run
        self.wait(self.open())

    def close(self):
        try:
            self.wait(self.shut())
        finally:
            self.runner.close()

    async def open(self):
        raise NotImplementedError

    async def shut(self):
        pass

    def commit(self):
        self.wait(self.conn.commit())

    def rollback(self):
        self.wait(self.conn.rollback())

    def enqueue(self, handler, *args, **kwargs):
        return self.wait(handler.aenqueue(self.conn, *args, **kwargs))

    def enqueue_many(self, handler, items, **options):
        return self.wait(handler.aenqueue_many(self.conn, items, **options))

    def client(self, method, *args, **kwargs):
        return self.wait(getattr(AsyncClient(), method)(*args, conn=self.conn, **kwargs))

    def enqueued(self):
        return self.wait(enqueued_async(self.conn))

    @contextmanager
    def savepoint(self):
        leave = self.wait(self.enter_savepoint())
        try:
            yield
        finally:
            self.wait(leave())

    async def enter_savepoint(self):
        """Begin a savepoint; return the coroutine function that rolls it back."""
        nested = await self.conn.begin_nested()
        return nested.rollback


class Psycopg(Driver):
    def __init__(self, dsn):
        super().__init__(dsn)
        self.conn = psycopg.connect(dsn)

    def close(self):
        self.conn.close()

    def execute(self, sql):
        cursor = self.conn.execute(sql)
        return cursor.fetchone()[0] if cursor.description else None

    @contextmanager
    def savepoint(self):
        with self.conn.transaction(force_rollback=True):
            yield


class AsyncPsycopg(Awaited):
    async def open(self):
        self.conn = await psycopg.AsyncConnection.connect(self.dsn)

    async def shut(self):
        await self.conn.close()

    def execute(self, sql):
        async def run():
            cursor = await self.conn.execute(sql)
            return (await cursor.fetchone())[0] if cursor.description else None

        return self.wait(run())

    async def enter_savepoint(self):
        nested = self.conn.transaction()
        await nested.__aenter__()

        async def leave():
            await nested.__aexit__(psycopg.Rollback, psycopg.Rollback(nested), None)

        return leave


def asyncpg_address(dsn):
    """asyncpg's keywords for a libpq address."""
    parts = conninfo_to_dict(dsn)
    return {
        "host": parts["host"],
        "port": int(parts["port"]),
        "user": parts["user"],
        "database": parts["dbname"],
    }


class Asyncpg(Awaited):
    """Transactions of asyncpg are begun by hand, and here again after each end."""

    async def open(self):
        self.conn = await asyncpg.connect(**asyncpg_address(self.dsn))
        await self.begin()

    async def begin(self):
        self.transaction = self.conn.transaction()
        await self.transaction.start()

    async def shut(self):
        await self.conn.close()

    def execute(self, sql):
        return self.wait(self.conn.fetchval(sql))

    def commit(self):
        self.wait(self.transaction.commit())
        self.wait(self.begin())

    def rollback(self):
        self.wait(self.transaction.rollback())
        self.wait(self.begin())

    async def enter_savepoint(self):
        nested = self.conn.transaction()
        await nested.start()
        return nested.rollback


class AsyncpgPool(Asyncpg):
    async def open(self):
        self.pool = await asyncpg.create_pool(**asyncpg_address(self.dsn), min_size=1, max_size=1)
        self.conn = await self.pool.acquire()
        await self.begin()

    async def shut(self):
        await self.transaction.rollback()
        await self.pool.release(self.conn)
        await self.pool.close()


def url(dsn, driver="psycopg"):
    """SQLAlchemy's URL for a libpq address."""
    parts = conninfo_to_dict(dsn)
    return sa.URL.create(
        f"postgresql+{driver}",
        username=parts["user"],
        database=parts["dbname"],
        query={"host": parts["host"], "port": parts["port"]},
    )


def async_engine(dsn, driver):
    """An asynchronous engine for a libpq address."""
    if driver == "asyncpg":
        parts = conninfo_to_dict(dsn)
        where = {"host": parts["host"], "port": int(parts["port"])}
        bare = url(dsn, driver).set(query={})
        return sa_async.create_async_engine(bare, connect_args=where)
    return sa_async.create_async_engine(url(dsn, driver))


class SQLAlchemyConnection(Driver):
    def __init__(self, dsn):
        super().__init__(dsn)
        self.engine = sa.create_engine(url(dsn))
        self.open()

    def open(self):
        self.conn = self.engine.connect()

    def close(self):
        self.conn.close()
        self.engine.dispose()

    def execute(self, sql):
        result = self.conn.execute(sa.text(sql))
        return result.scalar() if result.returns_rows else None

    @contextmanager
    def savepoint(self):
        nested = self.conn.begin_nested()
        try:
            yield
        finally:
            nested.rollback()


class SQLAlchemySession(SQLAlchemyConnection):
    def open(self):
        self.conn = orm.Session(self.engine)


class SQLAlchemyScopedSession(SQLAlchemyConnection):
    def open(self):
        self.conn = orm.scoped_session(orm.sessionmaker(self.engine))

    def close(self):
        self.conn.remove()
        self.engine.dispose()


class AsyncSQLAlchemy(Awaited):
    driver = "psycopg"

    async def open(self):
        self.engine = async_engine(self.dsn, self.driver)
        self.conn = self.engine.connect()
        await self.conn.start()

    async def shut(self):
        await self.conn.close()
        await self.engine.dispose()

    def execute(self, sql):
        async def run():
            result = await self.conn.execute(sa.text(sql))
            return result.scalar() if result.returns_rows else None

        return self.wait(run())


class AsyncSQLAlchemySession(AsyncSQLAlchemy):
    async def open(self):
        self.engine = async_engine(self.dsn, self.driver)
        self.conn = sa_async.AsyncSession(self.engine)


class AsyncpgSQLAlchemy(AsyncSQLAlchemy):
    driver = "asyncpg"


class AsyncpgSQLAlchemySession(AsyncSQLAlchemySession):
    driver = "asyncpg"


class AsyncpgSQLAlchemyScopedSession(AsyncpgSQLAlchemySession):
    async def open(self):
        self.engine = async_engine(self.dsn, self.driver)
        factory = sa_async.async_sessionmaker(self.engine)
        self.conn = sa_async.async_scoped_session(factory, scopefunc=lambda: 1)

    async def shut(self):
        await self.conn.remove()
        await self.engine.dispose()


class DjangoConnection(Driver):
    """Django commits each statement outside of atomic(); a driver is inside, as a view would be."""

    def __init__(self, dsn):
        from tests.support import django_project

        super().__init__(dsn)
        django_project.connect_to(dsn)
        from django.db import connections, transaction

        self.transaction = transaction
        self.connection = connections["default"]
        self.conn = self.handed_over()
        self.begin()

    def handed_over(self):
        from django.db import connection

        return connection

    def begin(self):
        self.atomic = self.transaction.atomic()
        self.atomic.__enter__()

    def close(self):
        self.connection.in_atomic_block = False
        self.connection.close()
        from tests.support import django_project

        django_project.disconnect()

    def execute(self, sql):
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchone()[0] if cursor.description else None

    def commit(self):
        self.atomic.__exit__(None, None, None)
        self.begin()

    def rollback(self):
        self.atomic.__exit__(RolledBack, RolledBack(), None)
        self.begin()

    @contextmanager
    def savepoint(self):
        try:
            with self.transaction.atomic():
                yield
                raise RolledBack
        except RolledBack:
            pass


class DjangoConnections(DjangoConnection):
    def handed_over(self):
        return self.connection


class DjangoAlias(DjangoConnection):
    def handed_over(self):
        return "default"


ALL = [
    Psycopg,
    AsyncPsycopg,
    Asyncpg,
    AsyncpgPool,
    SQLAlchemyConnection,
    SQLAlchemySession,
    SQLAlchemyScopedSession,
    AsyncSQLAlchemy,
    AsyncSQLAlchemySession,
    AsyncpgSQLAlchemy,
    AsyncpgSQLAlchemySession,
    AsyncpgSQLAlchemyScopedSession,
    DjangoConnection,
    DjangoConnections,
    DjangoAlias,
]
