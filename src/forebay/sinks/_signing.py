"""Signatures of Standard Webhooks, by which a receiver recognises the sender:
https://www.standardwebhooks.com.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING, Any, Final

from forebay.sinks._support import library

if TYPE_CHECKING:
    from collections.abc import Sequence

SYMMETRIC: Final = "whsec_"
PRIVATE: Final = "whsk_"
PUBLIC: Final = "whpk_"

#: The length of a symmetric secret in bytes.
_SECRET_BYTES: Final = range(24, 65)


class Signer:
    """Signs with one or several secrets: all of them, so that receivers may change theirs at
    different times.

    Args:
        secrets: ``whsec_`` and 24 to 64 bytes as base64, for HMAC-SHA256; or ``whsk_`` and an
            ed25519 private key as base64: 32 bytes, or 64 with the public key.

    Raises:
        ValueError: a secret has another form. The message does not repeat it.
        ConfigError: the library cryptography is missing.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._symmetric: list[bytes] = []
        self._keys: list[Any] = []
        for secret in secrets:
            if secret.startswith(SYMMETRIC):
                key = _decoded(secret.removeprefix(SYMMETRIC))
                if len(key) not in _SECRET_BYTES:
                    raise ValueError(f"has {len(key)} bytes, not 24 to 64")
                self._symmetric.append(key)
            elif secret.startswith(PRIVATE):
                self._keys.append(_private_key(secret))
            else:
                raise ValueError(f"begins with neither {SYMMETRIC} nor {PRIVATE}")

    def headers(self, message_id: str, seconds: int, body: bytes) -> dict[str, str]:
        """Return the three headers for the exact bytes of a body.

        Args:
            message_id: the same on every try.
            seconds: the time of this try, in seconds since 1970.
            body: what is sent.
        """
        name = webhook_id(message_id)
        content = b"%b.%d.%b" % (name.encode(), seconds, body)
        signatures = [
            f"v1,{_encoded(hmac.digest(key, content, hashlib.sha256))}" for key in self._symmetric
        ]
        signatures += [f"v1a,{_encoded(key.sign(content))}" for key in self._keys]
        return {
            "webhook-id": name,
            "webhook-timestamp": str(seconds),
            "webhook-signature": " ".join(signatures),
        }


def public_key(secret: str) -> str:
    """Return the public key, ``whpk_...``, of a private key ``whsk_...``: what receivers need to
    verify signatures.

    Raises:
        ValueError: the private key has another form.
    """
    return PUBLIC + _encoded(_private_key(secret).public_key().public_bytes_raw())


def webhook_id(message_id: str) -> str:
    """Return the id of a message without full stops and other characters that separate the parts
    of what is signed.

    >>> webhook_id("7-6475efd0fe000-eu.west~1")
    '7-6475efd0fe000-eu%2Ewest~1'
    """
    return "".join(
        one if one.isascii() and (one.isalnum() or one in "-_~") else _percent(one)
        for one in message_id
    )


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


def _private_key(secret: str) -> Any:
    ed25519 = library("cryptography.hazmat.primitives.asymmetric.ed25519", "http")
    raw = _decoded(secret.removeprefix(PRIVATE))
    if not secret.startswith(PRIVATE) or len(raw) not in (32, 64):
        raise ValueError(f"is not {PRIVATE} and 32 or 64 bytes as base64")
    key = ed25519.Ed25519PrivateKey.from_private_bytes(raw[:32])
    if len(raw) == 64 and key.public_key().public_bytes_raw() != raw[32:]:
        raise ValueError("has a public part that belongs to another key")
    return key


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise ValueError("is not base64") from None


def _encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
