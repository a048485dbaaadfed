"""A filter for the admin of a model: rows between two times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib.admin import FieldListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import DateTimeField
from django.http import HttpRequest

from forebay.django._admin_base import instant
from forebay.errors import InvalidJob


class BetweenFilter(FieldListFilter):
    """A filter with two fields: from and until, both included; an empty one leaves a side open.

    For a ``DateField`` or a ``DateTimeField``: ``list_filter = [("changed_at", BetweenFilter)]``.
    Times are those of Django's time zone.
    """

    template = "admin/forebay/between.html"

    def __init__(  # noqa: PLR0917 - as Django calls it
        self,
        field: Any,
        request: HttpRequest,
        params: dict[str, Any],
        model: Any,
        model_admin: Any,
        field_path: str,
    ) -> None:
        self._names = (f"{field_path}__gte", f"{field_path}__lte")
        self._has_time = isinstance(field, DateTimeField)
        super().__init__(field, request, params, model, model_admin, field_path)
        # Django 5 gives lists, as in the address: the last one counts, as in its own filters.
        self.given = {
            name: str(value[-1] if isinstance(value, list) else value).strip()
            for name, value in self.used_parameters.items()
        }

    def expected_parameters(self) -> list[str]:
        """Return the names in the address."""
        return list(self._names)

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Return the rows between the times."""
        del request
        wanted: dict[str, Any] = {}
        for name, text in self.given.items():
            if text:
                try:
                    found = instant(text, name)
                except InvalidJob as error:
                    raise IncorrectLookupParameters(error) from error
                wanted[name] = found if self._has_time else found.date()
        return queryset.filter(**wanted)

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        """Return the two fields, and the rest of the address."""
        others = changelist.get_filters_params()
        yield {
            "type": "datetime-local" if self._has_time else "date",
            "fields": [
                (label, name, self.given.get(name, ""))
                for label, name in zip(("from", "until"), self._names, strict=True)
            ],
            "others": [
                (name, value)
                for name, values in others.items()
                if name not in self._names
                for value in (values if isinstance(values, list) else [values])
            ],
            "clear": changelist.get_query_string(remove=self._names),
            "selected": any(self.given.values()),
        }
