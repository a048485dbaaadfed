"""Tasks of the test project: of Django 6.0, or of the package django-tasks before."""

try:
    from django.tasks import task
except ModuleNotFoundError:
    from django_tasks import task

#: What ran, in this process.
ran: list[object] = []


@task
def add(left, right=1):
    ran.append(left + right)
    return left + right


@task(priority=50, queue_name="mail")
async def add_later(left):
    ran.append(left)


@task(takes_context=True)
def with_context(context, text):
    ran.append((context.attempt, context.task_result.id, text))


@task
def failing():
    raise ValueError("no such user")


@task
def not_run():
    return add_later.func(1)
