"""TLS of an HTTP sink: whom it trusts, and the certificate with which it shows who it is."""

from __future__ import annotations

import base64
import hashlib
import re
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forebay.errors import ConfigError, SinkUnavailable, shown
from forebay.sinks._secrets import Secret, checked_secret
from forebay.sinks._support import checked_name

if TYPE_CHECKING:
    from collections.abc import Callable

#: The form that curl has for the hash of a public key.
_PIN: Final = re.compile(r"sha256//[A-Za-z0-9+/]{43}=")
_PINNED_MAX: Final = 10

#: A chain of certificates is shorter.
_FILE_BYTES_MAX: Final = 1_000_000

#: Alerts with which a server refuses a certificate of its client, in words.
_REFUSALS: Final = {
    "ALERT_CERTIFICATE_REQUIRED": "none was sent",
    "ALERT_BAD_CERTIFICATE": "malformed, or for another purpose",
    "ALERT_UNSUPPORTED_CERTIFICATE": "its type is not supported",
    "ALERT_CERTIFICATE_REVOKED": "revoked",
    "ALERT_CERTIFICATE_EXPIRED": "expired",
    "ALERT_CERTIFICATE_UNKNOWN": "not accepted",
    "ALERT_UNKNOWN_CA": "its authority is unknown there",
    "ALERT_ACCESS_DENIED": "valid, but without access",
}


class Tls:
    """What an HTTP sink uses for TLS.

    Invariant "one pair at a time": certificate and key are read together, and a connection has the
    pair that was the newest when it began. Files that do not fit, such as during their replacement,
    make messages wait; the next call reads them again.

    Args:
        is_tls: whether the address of the endpoint begins with https.
        ca_file: the only trusted authorities; None: those of the operating system.
        cert_file: the certificate of this client, with the chain to its authority; PEM.
        key_file: its private key; PEM. None: it is in ``cert_file``.
        key_passphrase: opens the key.
        pinned: hashes of public keys, one of which the endpoint must have.

    Raises:
        ConfigError: a value is refused, or they contradict each other.
    """

    def __init__(
        self,
        *,
        is_tls: bool,
        ca_file: str | None,
        cert_file: str | None,
        key_file: str | None,
        key_passphrase: str | Secret | None,
        pinned: Sequence[str] | None,
    ) -> None:
        self._ca_file = None if ca_file is None else checked_name("http", "ca_file", ca_file)
        self._cert_file = _checked_file("cert_file", cert_file)
        self._key_file = _checked_file("key_file", key_file)
        self._passphrase = (
            None
            if key_passphrase is None
            else checked_secret("sink http: key_passphrase", key_passphrase)
        )
        self.pinned = frozenset() if pinned is None else _checked_pinned(pinned)
        for name, value in (("key_file", key_file), ("key_passphrase", key_passphrase)):
            if value is not None and cert_file is None:
                raise ConfigError(f"sink http: {name}", "has no meaning without cert_file")
        for name, given in (("cert_file", cert_file), ("pinned", pinned)):
            if given is not None and not is_tls:
                raise ConfigError(
                    f"sink http: {name}",
                    "has no meaning for an address that begins with http://",
                    hint="Write https:// in url.",
                )
        self._context: ssl.SSLContext | None = None
        self._read: object = None
        self._ends_at: datetime | None = None

    @property
    def has_certificate(self) -> bool:
        """Whether this client shows a certificate."""
        return self._cert_file is not None

    def context(
        self, place: str, reveal: Callable[[str, str | Secret], str]
    ) -> ssl.SSLContext | None:
        """Return the context for new connections; None for the usual checks.

        Files that changed since the last call are read again. It is another object only then.

        Args:
            place: of the sink, for errors.
            reveal: reads the secret of a field.

        Raises:
            SinkUnavailable: a file cannot be used, which an operator can mend.
        """
        if self._ca_file is None and self._cert_file is None:
            return None
        passphrase = (
            None if self._passphrase is None else reveal("key_passphrase", self._passphrase)
        )
        try:
            # Before the files are read: what changes meanwhile is read at the next call.
            facts = (*map(_state_of, self._files()), passphrase)
            if facts != self._read:
                self._context = self._new_context(passphrase)
                self._read = facts
            self._check_time()
        except _Unusable as error:
            self._read = None
            raise SinkUnavailable(f"{place}: {error}") from None
        return self._context

    def _files(self) -> list[tuple[str, str]]:
        given = {
            "ca_file": self._ca_file, "cert_file": self._cert_file, "key_file": self._key_file,
        }  # fmt: skip
        return [(field, path) for field, path in given.items() if path is not None]

    def _new_context(self, passphrase: str | None) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._ca_file)
        except (OSError, ValueError) as error:
            raise _Unusable(f"ca_file: {type(error).__name__}") from None
        if self._cert_file is not None:
            self._ends_at = _end_of(self._cert_file)
            self._load(context, self._cert_file, passphrase)
        return context

    def _load(self, context: ssl.SSLContext, cert_file: str, passphrase: str | None) -> None:
        field = "cert_file" if self._key_file is None else "key_file"
        is_encrypted = False

        def password() -> str:
            # Without this function the library would ask at the terminal.
            nonlocal is_encrypted
            is_encrypted = True
            return passphrase or ""

        try:
            context.load_cert_chain(cert_file, self._key_file, password)
        except (OSError, ValueError) as error:
            if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
                problem = f"{field}: the key does not belong to the certificate in cert_file"
            elif is_encrypted and passphrase is None:
                problem = f"{field}: the key is encrypted, and key_passphrase is not given"
            elif is_encrypted:
                problem = f"key_passphrase: does not open the key in {field}"
            else:
                problem = f"{field}: has no private key in PEM"
            raise _Unusable(problem) from None

    def _check_time(self) -> None:
        if self._ends_at is not None and self._ends_at <= datetime.now(UTC):
            raise _Unusable(
                f"cert_file: the certificate expired at {self._ends_at:%Y-%m-%d %H:%M}Z"
            )


class _Unusable(ValueError):  # noqa: N818 - says what happened
    """A file cannot be used. The message is a reason without its content."""


def client_refusal(error: BaseException | None, *, has_certificate: bool) -> str | None:
    """Return the reason if a server refused the certificate of its client, or demands one.

    Args:
        error: of a connection; None: none is known.
        has_certificate: whether this client has one.
    """
    cause, alert = error, None
    while cause is not None and alert is None:
        alert = getattr(cause, "reason", None) if isinstance(cause, ssl.SSLError) else None
        cause = cause.__cause__ or cause.__context__
    alert = alert or ""
    refusal = next((words for name, words in _REFUSALS.items() if name in alert), None)
    if refusal is None:
        return None
    if not has_certificate:
        return "the endpoint demands a client certificate: give cert_file and key_file"
    return f"the endpoint refuses the client certificate: {refusal}"


def pin_of(certificate: bytes) -> str:
    """Return the hash of the public key of a certificate in DER, in the form of ``pinned``."""
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - an extra
        Encoding,
        PublicFormat,
    )
    from cryptography.x509 import load_der_x509_certificate  # noqa: PLC0415

    key = load_der_x509_certificate(certificate).public_key()
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return "sha256//" + base64.b64encode(hashlib.sha256(der).digest()).decode()


def _state_of(file: tuple[str, str]) -> tuple[str, int, int, int]:
    """Return what changes when a file is replaced or written."""
    field, path = file
    try:
        found = Path(path).stat()
    except (OSError, ValueError) as error:
        raise _Unusable(f"{field}: cannot be read: {type(error).__name__}") from None
    return path, found.st_ino, found.st_mtime_ns, found.st_size


def _end_of(cert_file: str) -> datetime:
    """Return when the first certificate of a file expires."""
    from cryptography.x509 import load_pem_x509_certificate  # noqa: PLC0415 - an extra

    try:
        with Path(cert_file).open("rb") as file:
            found = load_pem_x509_certificate(file.read(_FILE_BYTES_MAX))
    except OSError as error:
        raise _Unusable(f"cert_file: cannot be read: {type(error).__name__}") from None
    except ValueError:
        raise _Unusable("cert_file: has no certificate in PEM") from None
    return found.not_valid_after_utc


def _checked_file(field: str, value: object) -> str | None:
    if value is None:
        return None
    path = checked_name("http", field, value)
    if not path.startswith("/"):
        raise ConfigError(
            f"sink http: {field}",
            f"is {shown(value)}, not the absolute path of a file",
            hint="Write /FOLDER/FILE.pem.",
        )
    return path


def _checked_pinned(value: object) -> frozenset[str]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= _PINNED_MAX:
        raise ConfigError(
            "sink http: pinned", f"is {shown(value)}, not a list of 1 to {_PINNED_MAX} hashes"
        )
    for one in value:
        if not isinstance(one, str) or not _PIN.fullmatch(one):
            raise ConfigError(
                "sink http: pinned",
                f"has {shown(one)}, not the hash of a public key",
                hint='Write "sha256//" and the SHA-256 in Base64, as curl --pinnedpubkey has it.',
            )
    return frozenset(value)
