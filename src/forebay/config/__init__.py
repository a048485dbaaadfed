"""Settings: default < file < environment < flag, each with its source.

Nothing is read at import. The command line or ``App`` calls ``load_settings`` and
``resolve_address`` once.
"""

from forebay.config._address import (
    EMBEDDED,
    Address,
    masked_dsn,
    require_address,
    resolve_address,
)
from forebay.config._own_address import (
    Connect,
    OwnAddress,
    Password,
    UnkeptAddress,
    with_functions,
)
from forebay.config._resolve import (
    DEFAULT,
    FileOptions,
    SettingRow,
    Settings,
    find_file_options,
    load_settings,
    resolve_settings,
)
from forebay.config._settings import (
    GROUPS,
    DeliverySettings,
    PayloadSettings,
    Queues,
    RetentionSettings,
    RetrySettings,
    SegmentSettings,
    WorkerSettings,
    checked_group,
    declared_settings,
    listed,
    listen_address,
    parse_queue_weights,
)

__all__ = [
    "DEFAULT",
    "EMBEDDED",
    "GROUPS",
    "Address",
    "Connect",
    "DeliverySettings",
    "FileOptions",
    "OwnAddress",
    "Password",
    "PayloadSettings",
    "Queues",
    "RetentionSettings",
    "RetrySettings",
    "SegmentSettings",
    "SettingRow",
    "Settings",
    "UnkeptAddress",
    "WorkerSettings",
    "checked_group",
    "declared_settings",
    "find_file_options",
    "listed",
    "listen_address",
    "load_settings",
    "masked_dsn",
    "parse_queue_weights",
    "require_address",
    "resolve_address",
    "resolve_settings",
    "with_functions",
]
