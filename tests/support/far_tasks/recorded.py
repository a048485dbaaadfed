"""Tasks for workers of other libraries add what they got to a list in Redis."""

import json
import os

import redis


def record(message_id, kwargs, headers):
    with redis.Redis.from_url(os.environ["FAR_REDIS"]) as client:
        client.rpush(
            os.environ["FAR_LIST"],
            json.dumps({"id": message_id, "kwargs": kwargs, "headers": headers}),
        )
