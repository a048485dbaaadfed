"""The admin of the test project: users and groups, of which jobs can be enqueued."""

from django.contrib import admin
from django.contrib.auth.models import Group, User

from forebay.django.admin import BetweenFilter, Enqueue, EnqueueMixin
from tests.support.django_project.jobs import label, send_welcome

admin.site.unregister([User, Group])


@admin.register(User)
class UserAdmin(EnqueueMixin, admin.ModelAdmin):
    """Users, filtered by group and between two times."""

    list_display = ("username", "date_joined")
    list_filter = ("groups", "is_active", ("date_joined", BetweenFilter))
    search_fields = ("username", "groups__name")
    list_per_page = 5
    enqueue_kinds = (
        Enqueue(send_welcome, {"user_id": "pk"}, tag="backfill.admin"),
        Enqueue("elsewhere", {"name": "username"}, shared={"force": True}, queue="far"),
    )


@admin.register(Group)
class GroupAdmin(EnqueueMixin, admin.ModelAdmin):
    """Groups: a job for each of their users."""

    enqueue_kinds = (
        Enqueue(
            send_welcome,
            {"user_id": "pk"},
            rows=lambda groups: User.objects.filter(groups__in=groups).distinct(),
            label="Welcome the users of selected groups",
        ),
        Enqueue(label, {"text": "name"}),
    )
