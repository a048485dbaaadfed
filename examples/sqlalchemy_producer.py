"""SQLAlchemy: a session's objects and their jobs in one transaction."""

import psycopg
import sqlalchemy as sa
from app import app, send_welcome
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

# Usually create_engine("postgresql+psycopg://user@host/database").
engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(app.dsn))


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"
    user_id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


Base.metadata.create_all(engine)

# Both exist, or neither does.
with Session(engine) as session, session.begin():
    ann = User(name="Ann")
    session.add(ann)
    session.flush()  # so that it has its number
    send_welcome.enqueue(session, user_id=ann.user_id)

# Rolled back together.
with Session(engine) as session:
    bob = User(name="Bob")
    session.add(bob)
    session.flush()
    send_welcome.enqueue(session, user_id=bob.user_id)
    session.rollback()

# Rolling back to a savepoint removes only the jobs enqueued inside it.
with Session(engine) as session, session.begin():
    eve = User(name="Eve")
    session.add(eve)
    session.flush()
    send_welcome.enqueue(session, user_id=eve.user_id)
    with session.begin_nested() as savepoint:
        send_welcome.enqueue(session, user_id=eve.user_id, locale="it")
        savepoint.rollback()

# Without the ORM: a Connection.
with engine.begin() as conn:
    zoe = conn.execute(sa.insert(User).values(name="Zoe").returning(User.user_id)).scalar_one()
    send_welcome.enqueue(conn, user_id=zoe)

jobs = app.client().jobs()
assert [job.args["user_id"] for job in jobs] == [4, 3, 1]
assert all("locale" not in job.args for job in jobs)
app.run_worker(until_idle=True)
engine.dispose()
