"""An application of Celery."""

import os

import celery
import recorded

app = celery.Celery("far", broker=os.environ["FAR_BROKER"])
app.conf.broker_connection_retry_on_startup = False


@app.task(bind=True, name="shop.ship")
def ship(self, **kwargs):
    headers = {"tenant": self.request.get("tenant"), "forebay-id": self.request.get("forebay-id")}
    recorded.record(self.request.id, kwargs, headers)
