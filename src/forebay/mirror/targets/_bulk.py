"""The bulk requests of Elasticsearch and OpenSearch: lines of JSON, and a result for each item.

A request returns 200 even when some of its items failed. The status of an item means:

- 409, a version conflict: a newer version is already there, as it should be;
- 400 and 413: the item is at fault, and a retry would fail too;
- 429: no capacity now, retry this item;
- anything else, such as a missing index or a lost shard: the item is not at fault.

Sources: "Bulk API", "Index API: versioning", in the reference of Elasticsearch and of OpenSearch.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from forebay.errors import TargetUnavailable
from forebay.mirror._model import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from forebay.mirror._model import Id

#: Bytes of one request; some hosted services accept at most 10 MB.
REQUEST_BYTES_MAX: Final = 5_000_000

_OK: Final = frozenset({200, 201})
_CONFLICT: Final = 409
_FULL: Final = 429
_REFUSED: Final = frozenset({400, 413})
_NOT_FOUND: Final = 404


class Action(NamedTuple):
    """One item of a bulk request.

    Attributes:
        item: its id, for error messages.
        kind: ``index`` or ``delete``.
        lines: the lines of the request.
    """

    item: Id
    kind: str
    lines: bytes


class Again(Enum):
    """The server had no capacity for an item; a retry may succeed."""

    AGAIN = auto()


def index(item: Id, version: int, source: Mapping[str, Any], *, repeats: bool = True) -> Action:
    """Return the action that replaces an older document, or also one of the same version if it
    repeats.

    >>> index(7, 4, {"title": "Weirs"}).lines.decode().splitlines()
    ['{"index":{"_id":"7","version":4,"version_type":"external_gte"}}', '{"title":"Weirs"}']
    """
    how = "external_gte" if repeats else "external"
    meta = {"_id": str(item), "version": version, "version_type": how}
    head = msgspec.json.encode({"index": meta})
    return Action(item, "index", b"%b\n%b\n" % (head, msgspec.json.encode(source)))


def delete(item: Id, seq_no: int, primary_term: int) -> Action:
    """Return the action that removes a document if it is unchanged since it had these numbers."""
    meta = {"_id": str(item), "if_seq_no": seq_no, "if_primary_term": primary_term}
    return Action(item, "delete", b"%b\n" % msgspec.json.encode({"delete": meta}))


def requests(
    actions: Iterable[Action], bytes_max: int = REQUEST_BYTES_MAX
) -> Iterator[list[Action]]:
    """Divide actions into requests of bounded length; a longer action gets a separate request.

    >>> [len(each) for each in requests([Action(n, "index", b"12345") for n in range(5)], 10)]
    [2, 2, 1]
    """
    part: list[Action] = []
    size = 0
    for action in actions:
        if part and size + len(action.lines) > bytes_max:
            yield part
            part, size = [], 0
        part.append(action)
        size += len(action.lines)
    if part:
        yield part


def results(actions: Sequence[Action], answer: Any) -> list[Exception | Again | None]:
    """Return the result of each action, in order; None when it was applied or is no longer needed.

    Raises:
        TargetUnavailable: an item failed for another reason, or the answer is malformed.
    """
    items = answer.get("items") if isinstance(answer, dict) else None
    if not isinstance(items, list) or len(items) != len(actions):
        raise TargetUnavailable(f"the answer does not fit {len(actions)} bulk items")
    return [_result(action, item) for action, item in zip(actions, items, strict=True)]


def _result(action: Action, item: Any) -> Exception | Again | None:
    found = item.get(action.kind) if isinstance(item, dict) else None
    if not isinstance(found, dict) or found.get("_id") != str(action.item):
        raise TargetUnavailable(f"the answer has no bulk item {action.kind} {action.item}")
    status, error = found.get("status"), found.get("error")
    if error is None and status in _OK:
        return None
    if status == _CONFLICT or (action.kind == "delete" and error is None and status == _NOT_FOUND):
        return None
    # A full disk blocks the index with 429, or 403 in older versions; a retry after a second does
    # not help.
    if status == _FULL and kind_of(error) != "cluster_block_exception":
        return Again.AGAIN
    if status in _REFUSED:
        return Rejected(reason_of(error))
    raise TargetUnavailable(f"item {action.item}: {reason_of(error)}", detail=f"status {status}")


def kind_of(error: Any) -> str:
    """Return the type of an error, as servers name it; an empty text if it has none."""
    return str(error.get("type", "")) if isinstance(error, dict) else ""


def reason_of(error: Any) -> str:
    """Return the reason that a server gave for an error, in one line.

    >>> cause = {"type": "a", "reason": "b"}
    >>> error = {"type": "document_parsing_exception", "reason": "no number", "caused_by": cause}
    >>> reason_of(error)
    'document_parsing_exception: no number (a: b)'
    """
    if not isinstance(error, dict):
        return str(error)
    text = f"{kind_of(error)}: {error.get('reason')}".replace("\n", " ")
    cause = error.get("caused_by")
    return f"{text} ({reason_of(cause)})" if cause else text
