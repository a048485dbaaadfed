"""How the NATS sink logs in: credentials, a seed or a token."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import ConfigError, SinkUnavailable
from forebay.sinks._secrets import checked_secret, read_secret
from forebay.sinks._support import library

if TYPE_CHECKING:
    from forebay.sinks._secrets import Secret

#: The two parts of a credentials file, with any text around them.
_CREDENTIALS: Final = re.compile(
    r"BEGIN NATS USER JWT-+\s+(?P<jwt>[\w.-]+)\s.*?BEGIN USER NKEY SEED-+\s+(?P<seed>\w+)",
    re.DOTALL | re.ASCII,
)
#: How the library reads them, to the byte.
_CREDENTIALS_FORM: Final = (
    "-----BEGIN NATS USER JWT-----\n%s\n------END NATS USER JWT------\n"
    "-----BEGIN USER NKEY SEED-----\n%s\n------END USER NKEY SEED------\n"
)


class Login:
    """How to log in without a user in the address: by a credentials file, a seed or a token, each a
    reference.
    """

    def __init__(
        self,
        sink: str,
        credentials: str | Secret | None,
        nkey: str | Secret | None,
        token: str | Secret | None,
        *,
        has_user: bool,
    ) -> None:
        """Check what was given.

        Raises:
            ConfigError: more than one is given, or one is no reference to a secret.
        """
        given = {"credentials": credentials, "nkey": nkey, "token": token}
        given = {name: value for name, value in given.items() if value is not None}
        if len(given) > 1 or (given and has_user):
            names = [*given, *(["the user in url"] if has_user else [])]
            raise ConfigError(
                f"sink {sink}: {names[0]}", f"and {' and '.join(names[1:])} exclude each other"
            )
        self._field = next(iter(given), None)
        self._where = f"sink {sink}: {self._field}"
        if self._field is None:
            return
        self._reference = checked_secret(self._where, given[self._field])
        if self._field != "token":
            self._nkeys = library("nkeys", sink)
            self._raw = library("nats.aio.client", sink).RawCredentials

    def options(self, place: str) -> dict[str, Any]:
        """Return the options of the client; read the secret.

        The library never stops reading a file that lacks a part, so it is checked before.

        Raises:
            SinkUnavailable: the secret is missing or malformed. The message does not show it.
        """
        if self._field is None:
            return {}
        text = read_secret(self._where, self._reference)
        if self._field == "token":
            return {"token": text}
        if self._field == "nkey":
            self._check_seed(place, text)
            return {"nkeys_seed_str": text}
        found = _CREDENTIALS.search(text)
        if found is None:
            raise self._malformed(place, "a credentials file")
        self._check_seed(place, found["seed"])
        return {"user_credentials": self._raw(_CREDENTIALS_FORM % (found["jwt"], found["seed"]))}

    def _check_seed(self, place: str, seed: str) -> None:
        try:
            self._nkeys.from_seed(bytearray(seed.encode())).wipe()
        except Exception:
            # The error of the library may show a part of it.
            raise self._malformed(place, "the seed of a user") from None

    def _malformed(self, place: str, wanted: str) -> SinkUnavailable:
        named = self._reference if isinstance(self._reference, str) else "the secret"
        return SinkUnavailable(f"{place}: {self._where}: {named} is not {wanted}")
