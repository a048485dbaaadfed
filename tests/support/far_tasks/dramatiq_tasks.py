"""An actor for Dramatiq."""

import os

import dramatiq
import recorded
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import AgeLimit, CurrentMessage

url = os.environ["FAR_BROKER"]
middleware = [AgeLimit(), CurrentMessage()]
dramatiq.set_broker(
    RedisBroker(url=url, middleware=middleware)
    if url.startswith("redis")
    else RabbitmqBroker(url=url, middleware=middleware)
)


@dramatiq.actor(queue_name=os.environ["FAR_QUEUE"], actor_name="shop.ship")
def ship(**kwargs):
    message = CurrentMessage.get_current_message()
    recorded.record(message.message_id, kwargs, message.options["forebay"])
