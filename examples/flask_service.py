"""Flask: one session for each request, and the job in its transaction.

Start it, register a user, and start the worker that runs the jobs:

    flask --app flask_service run
    curl -sS -d email=ann@example.com http://127.0.0.1:5000/users
    forebay worker app:app
"""

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
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]


def create_app() -> Flask:
    Base.metadata.create_all(engine)
    app = Flask(__name__)
    app.teardown_appcontext(end_session)
    app.add_url_rule("/users", view_func=register, methods=["POST"])
    return app


def end_session(_error: BaseException | None) -> None:
    session.remove()  # rolls back what was not committed


def register() -> dict[str, int]:
    user = User(email=request.form["email"])
    session.add(user)
    session.flush()
    send_welcome.enqueue(session, user_id=user.id)
    if user.email.startswith("bob"):
        abort(409, "on second thoughts")  # neither Bob nor his job
    answer = {"user_id": user.id}
    session.commit()
    return answer
