"""What a restart keeps: messages that were receipted, cursors, schemas.

    restart.py URL before|after
"""
import os
import sys

import pulsar
from pulsar.schema import StringSchema

logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
client = pulsar.Client(sys.argv[1], operation_timeout_seconds=10, logger=logger)
topics = [f"kept-{i}" for i in range(8)]  # so many that each shard has some
for topic in topics:
    consumer = client.subscribe(topic, "s", schema=StringSchema())
    if sys.argv[2] == "before":
        producer = client.create_producer(topic, schema=StringSchema())
        for i in range(20):
            producer.send(f"{topic} {i}")
        for _ in range(10):
            consumer.acknowledge(consumer.receive(10_000))
    else:
        got = [consumer.receive(10_000).value() for _ in range(10)]
        assert got == [f"{topic} {i}" for i in range(10, 20)], got
    consumer.close()
client.close()
print("ok   restart", sys.argv[2], flush=True)
os._exit(0)
