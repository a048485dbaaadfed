"""Flask: one session for each request, and the job in its transaction."""

import psycopg
import sqlalchemy as sa
from app import app as jobs
from app import send_welcome
from flask import Flask, abort, request
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, scoped_session, sessionmaker

# Usually create_engine("postgresql+psycopg://user@host/database"). With Flask-SQLAlchemy,
# pass db.session.
engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(jobs.dsn))
session = scoped_session(sessionmaker(engine))


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"
    user_id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


service = Flask(__name__)


@service.teardown_appcontext
def end_session(_error: BaseException | None) -> None:
    session.remove()  # rolls back what was not committed


@service.post("/users")
def register() -> dict[str, int]:
    user = User(name=request.form["name"])
    session.add(user)
    session.flush()
    send_welcome.enqueue(session, user_id=user.user_id)
    if user.name == "Bob":
        abort(409, "on second thoughts")  # neither Bob nor his job
    answer = {"user_id": user.user_id}
    session.commit()
    return answer


Base.metadata.create_all(engine)
browser = service.test_client()
assert browser.post("/users", data={"name": "Ann"}).json == {"user_id": 1}
assert browser.post("/users", data={"name": "Bob"}).status_code == 409
assert browser.post("/users", data={"name": "Eve"}).json == {"user_id": 3}
assert [job.args for job in jobs.client().jobs()] == [{"user_id": 3}, {"user_id": 1}]

# In production, run a separate process: forebay worker app:app
jobs.run_worker(until_idle=True)
with session() as reading:
    assert reading.scalars(sa.select(User.name).order_by(User.user_id)).all() == ["Ann", "Eve"]
engine.dispose()
