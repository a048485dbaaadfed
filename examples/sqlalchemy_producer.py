"""SQLAlchemy: a session's objects and their jobs in one transaction.

Start it, and in another terminal the worker that runs its jobs:

    python sqlalchemy_producer.py
    forebay worker app:app
"""

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
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]


def main() -> None:
    Base.metadata.create_all(engine)

    # Both exist, or neither does.
    with Session(engine) as session, session.begin():
        ann = User(email="ann@example.com")
        session.add(ann)
        session.flush()  # so that it has its number
        send_welcome.enqueue(session, user_id=ann.id)
    print("registered ann@example.com, with a job")

    # Rolled back together.
    with Session(engine) as session:
        bob = User(email="bob@example.com")
        session.add(bob)
        session.flush()
        send_welcome.enqueue(session, user_id=bob.id)
        session.rollback()
    print("rolled back bob@example.com, and the job")

    # Rolling back to a savepoint removes only the jobs enqueued inside it.
    with Session(engine) as session, session.begin():
        eve = User(email="eve@example.com")
        session.add(eve)
        session.flush()
        send_welcome.enqueue(session, user_id=eve.id)
        with session.begin_nested() as savepoint:
            send_welcome.enqueue(session, user_id=eve.id, locale="it")
            savepoint.rollback()
    print("registered eve@example.com, with one job of two")

    # Without the ORM: a Connection.
    with engine.begin() as conn:
        insert = sa.insert(User).values(email="zoe@example.com").returning(User.id)
        send_welcome.enqueue(conn, user_id=conn.execute(insert).scalar_one())
    print("registered zoe@example.com, with a job")
    engine.dispose()


if __name__ == "__main__":
    main()
