"""Signatures of AWS, version 4, for an HTTP sink: with botocore, which the extra ``sqs`` brings."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from forebay.errors import ConfigError, shown
from forebay.sinks._http_login import (
    BadSecret,
    Login,
    Reveal,
    check_needed,
    check_together,
    revealed,
)
from forebay.sinks._secrets import checked_secret
from forebay.sinks._support import call_in_thread, checked_name, library

if TYPE_CHECKING:
    from forebay.sinks._http_client import Response

_NAME: Final = re.compile(r"[a-z0-9-]{1,64}")

#: Headers that a signature sets.
SIGNED_HEADERS: Final = ("x-amz-content-sha256", "x-amz-date", "x-amz-security-token")

#: Parts of codes with which AWS refuses keys or a signature, whatever the message.
_REFUSALS: Final = (
    "AuthFailure", "ExpiredToken", "IncompleteSignature", "InvalidAccessKeyId",
    "InvalidClientTokenId", "InvalidSignature", "InvalidToken", "RequestExpired",
    "RequestTimeTooSkewed", "SignatureDoesNotMatch", "UnrecognizedClient",
)  # fmt: skip

#: The settings of a signature, apart from the service.
AWS_SETTINGS: Final = (
    "aws_region", "aws_key_id", "aws_secret_key", "aws_session_token", "aws_profile",
)  # fmt: skip


def check_aws(given: Mapping[str, object]) -> None:
    """Check which settings of a signature are given.

    Raises:
        ConfigError: one has no meaning, or one is missing.
    """
    check_together(given, "aws_service", *AWS_SETTINGS)
    check_needed(given, "aws_service", "aws_region")
    check_needed(given, "aws_key_id", "aws_secret_key")
    check_needed(given, "aws_secret_key", "aws_key_id")
    check_together(given, "aws_key_id", "aws_session_token")
    if given["aws_profile"] is not None and given["aws_key_id"] is not None:
        raise ConfigError("sink http: aws_profile", "excludes aws_key_id")


class AwsSignature(Login):
    """Signs each try of a request: method, address, headers and the hash of the body, with the time
    of the try.

    Headers with other characters than ASCII are sent without being signed.

    Args:
        settings: by name: aws_service, aws_region, aws_key_id, aws_secret_key, aws_session_token,
            aws_profile.
        method: of HTTP.
        url: where to.

    Raises:
        ConfigError: a setting is refused, or botocore is missing.
    """

    #: They choose what a service does, under the signature.
    reserved: ClassVar[tuple[str, ...]] = ("x-amz-",)

    def __init__(self, settings: Mapping[str, Any], method: str, url: str) -> None:
        super().__init__()
        field = "sink http: aws_service"
        self._botocore = {
            name: library(f"botocore.{name}", "sqs", field=field)
            for name in ("auth", "awsrequest", "credentials", "exceptions", "session")
        }
        self._service = _checked_part("aws_service", settings["aws_service"])
        self._region = _checked_part("aws_region", settings["aws_region"])
        self._keys = {
            name: checked_secret(f"sink http: {name}", settings[name])
            for name in ("aws_key_id", "aws_secret_key", "aws_session_token")
            if settings[name] is not None
        }
        profile = settings["aws_profile"]
        self._profile = None if profile is None else checked_name("http", "aws_profile", profile)
        self._method, self._url = method, url
        self._found: Any = None
        self._credentials: Any = None

    async def read(self, reveal: Reveal) -> None:
        """Read the keys, or let botocore find them: environment, profile, container or machine.

        Keys with an end are those of now: botocore renews them long before.
        """
        if self._keys:
            keys = [revealed(reveal, name, secret) for name, secret in self._keys.items()]
            self._credentials = self._botocore["credentials"].ReadOnlyCredentials(
                *keys, *[None] * (3 - len(keys))
            )
            return
        try:
            # Files are read, and services of the machine asked.
            found = await call_in_thread(self._find, name="forebay-aws")
        except (self._botocore["exceptions"].BotoCoreError, OSError, ValueError) as error:
            raise BadSecret(f"aws_service: no credentials: {type(error).__name__}") from None
        if found is None:
            raise BadSecret(
                "aws_service: botocore finds no credentials in environment, profile or role"
            )
        self.hidden = [one for one in (found.secret_key, found.token) if one]
        self._credentials = found

    def _find(self) -> Any:
        """Return the keys of now; None: there are none."""
        if not isinstance(self._found, self._botocore["credentials"].RefreshableCredentials):
            # Others are read once by botocore: a changed file would not be seen.
            session = self._botocore["session"].Session(profile=self._profile)
            self._found = session.get_credentials()
        return None if self._found is None else self._found.get_frozen_credentials()

    async def headers(
        self, headers: Mapping[str, str], body: bytes, seconds: float
    ) -> Mapping[str, str]:
        """Return the signature of a try, and what it needs."""
        del seconds
        signed = {name: value for name, value in headers.items() if value.isascii()}
        signed["x-amz-content-sha256"] = hashlib.sha256(body).hexdigest()
        request = self._botocore["awsrequest"].AWSRequest(
            method=self._method, url=self._url, headers=signed, data=body
        )
        auth = self._botocore["auth"]
        # S3 alone takes the path as it is sent.
        kind = auth.S3SigV4Auth if self._service == "s3" else auth.SigV4Auth
        kind(self._credentials, self._service, self._region).add_auth(request)
        return {
            name.lower(): value
            for name, value in request.headers.items()
            if name.lower() == "authorization" or name.lower() in SIGNED_HEADERS
        }

    def refusal(self, response: Response) -> str | None:
        """Return the reason if AWS refuses the keys or the signature."""
        if response.status not in (400, 401, 403):
            return None
        text = f"{response.error_type or ''} {response.body.decode(errors='replace')}"
        code = next((one for one in _REFUSALS if one in text), None)
        return (
            code and f"the endpoint refuses the signature: HTTP status {response.status} ({code})"
        )


def _checked_part(field: str, value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ConfigError(
            f"sink http: {field}",
            f"is {shown(value)}, not a name of a-z, 0-9 and -",
            hint='Services are "execute-api", "lambda" or "s3"; regions are "eu-central-1".',
        )
    return value
