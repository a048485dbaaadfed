"""Who is let into the console off this machine: passwords, and the header of a proxy."""

import base64
import contextlib
import hashlib
import io

import pytest
import uvicorn
from starlette.testclient import TestClient

from forebay.cli import run
from forebay.console import access, asgi
from forebay.errors import ConfigError
from tests.support.engine import enqueue, one

SAME = {"sec-fetch-site": "same-origin"}
WORD = "correct horse battery"


@pytest.fixture
def cheap(monkeypatch):
    """Hashes that cost nothing."""
    monkeypatch.setattr(
        access, "_hashed", lambda word, salt: hashlib.sha256(salt + word.encode()).digest()
    )


@pytest.fixture
def file(cheap, tmp_path):
    """A file of passwords with two people: ada may act, bob looks only."""
    path = tmp_path / "passwords"
    path.touch(0o600)
    lines = [access.password_line(name, WORD, acts=name == "ada") for name in ("ada", "bob")]
    path.write_text("# colleagues\n\n" + "\n".join(lines))
    return path


def basic(name: str, password: str = WORD) -> dict[str, str]:
    """The headers of a browser in which a person has logged in."""
    text = base64.b64encode(f"{name}:{password}".encode()).decode()
    return {**SAME, "authorization": f"Basic {text}"}


@pytest.fixture
def client_at(database):
    """Make a browser at an address, of a console with an ``authorize``."""
    with contextlib.ExitStack() as stack:

        def client_at(authorize, peer: str = "10.0.0.9", name: str = "main") -> TestClient:
            app = asgi({name: database}, authorize=authorize, acts=True)
            client = TestClient(
                app, base_url="http://localhost", client=(peer, 4711), follow_redirects=False
            )
            return stack.enter_context(client)

        yield client_at


@pytest.mark.parametrize(
    "headers",
    [
        {}, basic("ada", WORD + "!"), basic("eve"), basic(""), basic("ada", ""),
        {"authorization": "Basic !"}, {"authorization": "Basic /w=="},
        {"authorization": "Bearer x"}, {"authorization": "Basic"}, {"cookie": "user=ada"},
        {"x-forwarded-user": "ada"},
    ],
    ids=str,
)  # fmt: skip
def test_only_a_right_password_opens(client_at, conn, file, headers):
    """
    On every address, and the answer names neither databases nor people.
    """
    enqueue(conn, queue="mail")
    client = client_at(access.Passwords(file), name="secretdb")
    for path in ("/", "/secretdb/", "/other/", "/secretdb/live", "/static/console.css", "/x"):
        answer = client.get(path, headers=headers)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"].startswith("Basic realm=")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert not any(word in answer.text for word in ("secretdb", "ada", "bob"))
    fields = {"act": "queues.pause", "queue": "mail"}
    assert client.post("/secretdb/act", data=fields, headers=SAME | headers).status_code == 401
    assert one(conn, "select count(*) from forebay.queue_group where paused_at is not null") == 0


def test_a_person_acts_under_her_name_if_her_line_says_so(client_at, conn, file):
    """
    The name is the actor in the event log. Another one looks only, and sees no button.
    """
    enqueue(conn, queue="mail")
    client = client_at(access.Passwords(file))
    fields = {"act": "queues.pause", "queue": "mail"}
    assert client.get("/main/workers", headers=basic("bob")).status_code == 200
    assert client.post("/main/act", data=fields, headers=basic("bob")).status_code == 403
    assert (
        '<form method="post' not in client.get("/main/queue?queue=mail", headers=basic("bob")).text
    )
    assert client.post("/main/act", data=fields, headers=basic("ada")).status_code == 200
    assert (
        one(conn, "select actor from forebay.events() where act = 'queues.pause'")
        == "ada (console)"
    )
    foreign = basic("ada") | {"sec-fetch-site": "cross-site"}
    assert client.post("/main/act", data=fields, headers=foreign).status_code == 403


def test_an_unknown_name_costs_what_a_wrong_password_costs(client_at, file, monkeypatch):
    """
    Each try is one hash of the same cost. A right password costs it once, until the file changes.
    """
    hashed = []
    whole = access._hashed
    monkeypatch.setattr(access, "_hashed", lambda *given: hashed.append(given) or whole(*given))
    client = client_at(access.Passwords(file))
    for tries, headers in enumerate((basic("eve"), basic("ada", "no"), basic("ada")), 1):
        client.get("/main/workers", headers=headers)
        assert len(hashed) == tries
    client.get("/main/workers", headers=basic("ada"))
    assert len(hashed) == 3
    assert {len(salt) for _, salt in hashed} == {16}
    client.get("/main/workers", headers=basic("ada", WORD + "x"))
    assert len(hashed) == 4


def test_tries_are_bounded_and_shut_no_colleague_out(client_at, file, monkeypatch):
    """
    After ten wrong ones an address is refused, also with a right password and whatever the name;
    after fifty in all, each new login. Who was let in before stays in. A minute later all can try.
    """
    guard = access.Passwords(file)
    first = client_at(guard, "2001:db8::1")
    assert first.get("/main/workers", headers=basic("ada")).status_code == 200
    for number in range(10):
        assert first.get("/", headers=basic(f"eve{number}")).status_code == 401
    neighbour = client_at(guard, "2001:db8::2")
    for client in (first, neighbour):
        refused = client.get("/", headers=basic("bob"))
        assert refused.status_code == 429
        assert refused.headers["retry-after"]
        assert client.get("/", headers=basic("ada")).status_code == 303
    other = client_at(guard, "10.0.0.1")
    assert other.get("/", headers=basic("bob", "no")).status_code == 401
    for number in range(39):
        peer = client_at(guard, f"10.0.1.{number}")
        assert peer.get("/", headers=basic("bob", "no")).status_code == 401
    assert other.get("/", headers=basic("bob")).status_code == 429
    monkeypatch.setattr(access, "_WINDOW_SECONDS", 0)
    assert other.get("/", headers=basic("bob")).status_code == 303


def test_the_file_is_read_again_when_it_has_changed(client_at, file):
    """
    A person who is taken out is out with the next request. While the file is bad nobody gets in.
    """
    client = client_at(access.Passwords(file))

    def status(name: str) -> int:
        return client.get("/main/workers", headers=basic(name)).status_code

    assert (status("ada"), status("bob")) == (200, 200)
    whole = file.read_text()
    file.write_text("\n".join(line for line in whole.splitlines() if "bob" not in line))
    assert (status("ada"), status("bob")) == (200, 401)
    file.write_text(whole)
    assert status("bob") == 200
    file.chmod(0o644)
    assert (status("ada"), status("bob")) == (503, 503)
    file.chmod(0o640)
    assert status("ada") == 200
    file.unlink()
    assert status("ada") == 503


GOOD = "$scrypt$ln=15,r=8,p=3$" + "a" * 22 + "$" + "a" * 43


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "has no line"), (b"# only this\n", "has no line"), (b"\xff", "UTF-8"),
        (b"ada", "line 1"), (f"\nada:{GOOD}:read".encode(), "line 2"), (b"ada:secret", "line 1"),
        (f":{GOOD}".encode(), "line 1"), (f"ada:{GOOD}:".encode(), "line 1"),
        (f"ada:{GOOD}\nada:{GOOD}".encode(), "twice"),
        (f"ada:{GOOD.replace('15', '4')}".encode(), "line 1"),
        (None, "No such file"),
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_file_is_refused_by_the_number_of_its_line(tmp_path, text, says):
    """
    What stands in the line is not shown: it may be a password.
    """
    path = tmp_path / "passwords"
    if text is not None:
        path.touch(0o600)
        path.write_bytes(text)
    with pytest.raises(ConfigError, match=says) as caught:
        access.Passwords(path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o660, 0o666])
def test_a_file_that_others_can_read_or_change_is_refused(file, mode):
    """
    With the command that closes it.
    """
    file.chmod(mode)
    with pytest.raises(ConfigError, match="others can read or change") as caught:
        access.Passwords(file)
    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize(
    ("peer", "headers", "status"),
    [
        ("10.0.0.7", [("x-user", "ada")], 200),
        ("::ffff:10.0.0.7", [("x-user", "ada")], 200),
        ("10.0.0.7", [], 403),
        ("10.0.0.7", [("x-user", " ")], 403),
        ("10.0.0.7", [("x-user", "ada"), ("x-user", "eve")], 403),
        ("10.0.1.7", [("x-user", "ada")], 403),
        ("127.0.0.1", [("x-user", "ada"), ("x-forwarded-for", "10.0.0.7")], 403),
        ("10.0.1.7", [("x-user", "ada"), ("forwarded", "for=10.0.0.7"), ("x-real-ip", "10.0.0.7")],
         403),
        ("10.0.1.7", [], 403),
        ("not-an-address", [("x-user", "ada")], 403),
    ],
    ids=str,
)  # fmt: skip
def test_the_header_counts_only_from_the_proxy(database, conn, monkeypatch, peer, headers, status):
    """
    Who is not the proxy has no line, also with headers that name the proxy as the peer.
    """
    enqueue(conn, queue="mail")
    served = serve(
        monkeypatch, "--listen", "10.0.0.1:80", "--dsn", database, "--acts",
        "--trust-header", "X-User", "--trust-from", "10.0.0.0/24",
    )  # fmt: skip
    with TestClient(served, base_url="http://10.0.0.1", client=(peer, 4711)) as client:
        assert client.get("/main/workers", headers=headers).status_code == status
        fields = {"act": "queues.pause", "queue": "mail"}
        done = client.post("/main/act", data=fields, headers=[*SAME.items(), *headers])
        assert done.status_code == status
    actors = "select array_agg(actor) from forebay.events() where act = 'queues.pause'"
    assert one(conn, actors) == (["ada (console)"] if status == 200 else None)


def serve(monkeypatch, *words: str):
    """Run ``forebay console`` until it would listen; return the application as it is served."""
    configs = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server: configs.append(server.config))
    assert run(["console", *words]) == 0
    (config,) = configs
    config.load()
    return config.loaded_app


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--listen", "0.0.0.0:80"], "--passwords FILE, or --trust-header"),
        (["--listen", ":80"], "--passwords FILE, or --trust-header"),
        (["--listen", "[::]:80"], "--passwords FILE, or --trust-header"),
        (["--listen", "10.0.0.1:80", "--acts"], "--passwords FILE, or --trust-header"),
        (["--listen", "10.0.0.1:80", "--host", "a.example"], "--passwords FILE, or"),
        (["--listen", "unix:/run/x"], "not HOST:PORT"),
        (["--listen", ":80", "--trust-header", "X-User", "--trust-from", "10.0.0.1"], "--host"),
        (["--trust-header", "X-User"], "--trust-from"),
        (["--trust-from", "10.0.0.1"], "--trust-header"),
        (["--listen", "10.0.0.1:80", "--trust-header", ""], "--passwords FILE, or"),
        (["--trust-header", "X User", "--trust-from", "10.0.0.1"], "name of a header"),
        (["--trust-header", "X-User", "--trust-from", "0.0.0.0/0"], "every address"),
        (["--trust-header", "X-User", "--trust-from", "::/0"], "every address"),
        (["--trust-header", "X-User", "--trust-from", "proxy"], "10.0.0.0/24"),
        (["--passwords", "nothing"], "No such file"),
        (["--acts-database", "other=x"], "which no database has"),
        (["--acts-database", "main"], "not NAME=ADDRESS"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_console_that_would_be_open_to_all_does_not_start(
    database, monkeypatch, tmp_path, capsys, words, says
):
    """
    The command ends with a hint before it listens.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(uvicorn.Server, "run", lambda _: pytest.fail("it listens"))
    assert run(["console", "--dsn", database, *words]) == 2
    printed = capsys.readouterr()
    assert says in " ".join((printed.out + printed.err).split())


def test_the_command_makes_a_line_that_lets_in(database, monkeypatch, tmp_path, capsys):
    """
    The password comes from the input and is not shown. Off this machine the command warns.
    """
    monkeypatch.setattr("sys.stdin", io.StringIO(WORD + "\n"))
    assert run(["console", "--hash", "ada", "--acts"]) == 0
    line = capsys.readouterr().out
    assert WORD not in line
    path = tmp_path / "passwords"
    path.touch(0o600)
    path.write_text(line)
    served = serve(
        monkeypatch, "--listen", ":80", "--host", "ops.example.org", "--dsn", database,
        "--passwords", str(path),
    )  # fmt: skip
    assert "plain text" in capsys.readouterr().err
    with TestClient(served, base_url="https://ops.example.org") as client:
        assert client.get("/main/workers").status_code == 401
        assert client.get("/main/workers", headers=basic("ada")).status_code == 200
        assert client.get("/", headers={"host": "evil.example", **basic("ada")}).status_code == 421
    for password in ("short", "", "a\x00" * 20, "x" * 1025):
        monkeypatch.setattr("sys.stdin", io.StringIO(password))
        assert run(["console", "--hash", "ada"]) == 2
    for name in ("a:b", "", "#a", " a", "x" * 201):
        monkeypatch.setattr("sys.stdin", io.StringIO(WORD))
        assert run(["console", "--hash", name]) == 2


def test_acts_have_an_address_of_their_own(conn, login):
    """
    Pages read as a member of forebay_reader, acts run as one of forebay_operator.
    """
    enqueue(conn, queue="mail")
    reader, operator = login("forebay_reader"), login("forebay_operator")
    app = asgi(reader, acts=True, acts_databases=operator)
    with TestClient(app, base_url="http://localhost", headers=SAME) as client:
        assert client.get("/main/jobs").status_code == 200
        fields = {"act": "queues.pause", "queue": "mail"}
        assert client.post("/main/act", data=fields).status_code == 200
        plan = client.get("/main/act", params={"act": "jobs.cancel_matching", "queue": "mail"})
        assert "Cancel 1 job." in plan.text
        roles = "select role from forebay.events() where act = 'queues.pause'"
        assert one(conn, roles) == "console_forebay_operator"
        sessions = (
            "select array_agg(distinct usename::text) from pg_stat_activity"
            " where application_name = 'forebay console'"
        )
        assert one(conn, sessions) == ["console_forebay_reader"]
    with pytest.raises(ConfigError, match="which no database has"):
        asgi({"shop": reader}, acts_databases=operator)
