"""What an unmodified Python client does with `pelton serve`; one scenario after the other.

    basics.py URL

Prints one line per scenario and ends with 1 if any did not hold. The client's own wheel may abort at the
end of the interpreter, so the process leaves by os._exit.
"""
import datetime
import os
import re
import sys
import threading
import time
import uuid

import pulsar
from pulsar import ConsumerType, InitialPosition, MessageId


def name(kind):
    return f"{kind}-{uuid.uuid4().hex[:8]}"


def receive(consumer, count, ack=True):
    got = []
    for _ in range(count):
        message = consumer.receive(10_000)
        got.append(message)
        if ack:
            consumer.acknowledge(message)
    return got


def arrived(consumer):
    """Acknowledges and yields what comes, until nothing does for half a second."""
    while True:
        try:
            message = consumer.receive(500)
        except pulsar.Timeout:
            return
        consumer.acknowledge(message)
        yield message


def nothing_more(consumer, ms=300):
    try:
        message = consumer.receive(ms)
    except pulsar.Timeout:
        return
    raise AssertionError(f"got {message.data()!r} too")


def data(messages):
    return [message.data() for message in messages]


def produce_and_consume(client):
    topic = name("plain")
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    sent = [b"m%d" % i for i in range(100)]
    ids = [producer.send(m, properties={"i": str(i)}, partition_key=f"k{i}") for i, m in enumerate(sent)]
    got = receive(consumer, 100)
    assert data(got) == sent
    assert [m.properties()["i"] for m in got] == [str(i) for i in range(100)]
    assert [m.partition_key() for m in got] == [f"k{i}" for i in range(100)]
    assert [str(m.message_id()) for m in got] == [str(i) for i in ids]
    nothing_more(consumer)


def batches(client):
    topic = name("batch")
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=50,
                                      batching_max_publish_delay_ms=20,
                                      compression_type=pulsar.CompressionType.LZ4)
    sent = [b"b%d" % i for i in range(1_000)]
    done, left = threading.Event(), [len(sent)]

    def answered(result, _id):
        assert result == pulsar.Result.Ok, result
        left[0] -= 1
        if left[0] == 0:
            done.set()

    for m in sent:
        producer.send_async(m, answered)
    producer.flush()
    assert done.wait(10)
    assert data(receive(consumer, 1_000)) == sent


def large_messages(client):
    topic = name("large")
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    sent = [bytes([i]) * (1_000_000 + i) for i in range(8)]
    for m in sent:
        producer.send(m)
    assert data(receive(consumer, 8)) == sent


def shared(client):
    topic = name("shared")
    consumers = [client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=10) for _ in range(3)]
    producer = client.create_producer(topic)
    for i in range(90):
        producer.send(b"%d" % i)
    got = []
    for consumer in consumers:
        got += [int(message.data()) for message in arrived(consumer)]
    assert sorted(got) == list(range(90))


def key_shared(client):
    topic = name("keyed")
    consumers = [client.subscribe(topic, "s", ConsumerType.KeyShared) for _ in range(2)]
    producer = client.create_producer(topic)
    for i in range(100):
        producer.send(b"%d" % i, partition_key=f"k{i % 10}")
    owners, order = {}, {}
    for index, consumer in enumerate(consumers):
        for message in arrived(consumer):
            key = message.partition_key()
            assert owners.setdefault(key, index) == index, "one key, two consumers"
            order.setdefault(key, []).append(int(message.data()))
    assert sorted(i for of_key in order.values() for i in of_key) == list(range(100))
    assert all(of_key == sorted(of_key) for of_key in order.values())


def failover(client):
    topic = name("failover")
    first = client.subscribe(topic, "s", ConsumerType.Failover, consumer_name="a")
    second = client.subscribe(topic, "s", ConsumerType.Failover, consumer_name="b")
    producer = client.create_producer(topic)
    for i in range(10):
        producer.send(b"%d" % i)
    assert data(receive(first, 5)) == [b"%d" % i for i in range(5)]
    time.sleep(0.3)  # acks are grouped for 100 ms by the client
    first.close()
    assert data(receive(second, 5)) == [b"%d" % i for i in range(5, 10)]


def redelivery(client):
    topic = name("nack")
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    client.create_producer(topic).send(b"again")
    first = consumer.receive(5_000)
    assert first.redelivery_count() == 0
    consumer.negative_acknowledge(first)
    second = consumer.receive(5_000)
    assert (second.data(), second.redelivery_count()) == (b"again", 1)
    consumer.acknowledge(second)


def dead_letters(client):
    topic = name("dead")
    policy = pulsar.ConsumerDeadLetterPolicy(2, f"{topic}-s-DLQ", "kept")
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, dead_letter_policy=policy,
                                negative_ack_redelivery_delay_ms=50)
    client.create_producer(topic).send(b"poison")
    for _ in range(3):
        consumer.negative_acknowledge(consumer.receive(5_000))
    dead = client.subscribe(f"{topic}-s-DLQ", "kept", initial_position=InitialPosition.Earliest,
                            consumer_type=ConsumerType.Shared)
    assert dead.receive(10_000).data() == b"poison"


def delayed(client):
    topic = name("delayed")
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    sent_ms = int(time.time() * 1_000)  # the client's own unit
    producer.send(b"later", deliver_after=datetime.timedelta(milliseconds=800))
    producer.send(b"now")
    assert data(receive(consumer, 2)) == [b"now", b"later"]
    assert time.time() * 1_000 >= sent_ms + 800


def seek(client):
    topic = name("seek")
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for i in range(10):
        producer.send(b"%d" % i)
    receive(consumer, 10)
    consumer.seek(MessageId.earliest)
    assert data(receive(consumer, 10)) == [b"%d" % i for i in range(10)]
    at = int(time.time() * 1000)
    time.sleep(0.05)
    producer.send(b"new")
    consumer.seek(at)
    assert consumer.receive(10_000).data() == b"new"


def reader(client):
    topic = name("reader")
    keeper = client.subscribe(topic, "keeper")
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % i) for i in range(10)]
    whole = client.create_reader(topic, MessageId.earliest)
    assert whole.has_message_available()
    assert [whole.read_next(10_000).data() for _ in range(10)] == [b"%d" % i for i in range(10)]
    assert not whole.has_message_available()
    behind = client.create_reader(topic, ids[4])
    assert behind.read_next(10_000).data() == b"5"
    keeper.close()


def regex(client):
    stem = name("re")
    producers = [client.create_producer(f"{stem}-{i}") for i in range(3)]
    consumer = client.subscribe(re.compile(f"persistent://public/default/{stem}-.*"), "s")
    for i, producer in enumerate(producers):
        producer.send(b"%d" % i)
    assert sorted(data(receive(consumer, 3))) == [b"0", b"1", b"2"]


def schemas(client):
    from pulsar.schema import JsonSchema, Record, String

    class Order(Record):
        what = String()

    topic = name("schema")
    consumer = client.subscribe(topic, "s", schema=JsonSchema(Order))
    producer = client.create_producer(topic, schema=JsonSchema(Order))
    producer.send(Order(what="espresso"))
    assert consumer.receive(10_000).value().what == "espresso"
    try:
        client.create_producer(topic, schema=pulsar.schema.StringSchema())
    except pulsar.IncompatibleSchema:
        return
    raise AssertionError("a schema of another type was taken")


def non_persistent(client):
    topic = "non-persistent://public/default/" + name("np")
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for i in range(10):
        producer.send(b"%d" % i)
    assert data(receive(consumer, 10)) == [b"%d" % i for i in range(10)]


def names_in_use(client):
    topic = name("busy")
    producer = client.create_producer(topic, producer_name="p")
    try:
        client.create_producer(topic, producer_name="p")
        raise AssertionError("two producers of one name")
    except pulsar.ProducerBusy:
        pass
    producer.close()
    client.create_producer(topic, producer_name="p").close()
    holder = client.subscribe(topic, "s")
    try:
        client.subscribe(topic, "s")
        raise AssertionError("two exclusive consumers")
    except pulsar.ConsumerBusy:
        pass
    holder.unsubscribe()
    client.subscribe(topic, "s").close()


def exclusive_producers(client):
    topic = name("exclusive")
    mode = pulsar.ProducerAccessMode
    first = client.create_producer(topic, access_mode=mode.Exclusive)
    for wanted, refused in [(mode.Shared, pulsar.ProducerBusy), (mode.Exclusive, pulsar.ProducerFenced)]:
        try:
            client.create_producer(topic, access_mode=wanted)
        except refused:
            continue
        raise AssertionError(f"{wanted} got in beside an exclusive producer")
    got = []
    waiting = threading.Thread(target=lambda: got.append(
        client.create_producer(topic, access_mode=mode.WaitForExclusive)))
    waiting.start()
    waiting.join(0.3)
    assert not got, "it did not wait"
    first.close()
    waiting.join(10)
    got[0].send(b"mine now")
    fencing = client.create_producer(topic, access_mode=mode.ExclusiveWithFencing)
    fencing.send(b"no, mine")


SCENARIOS = [produce_and_consume, batches, large_messages, shared, key_shared, failover, redelivery,
             dead_letters, delayed, seek, reader, regex, schemas, non_persistent, names_in_use,
             exclusive_producers]


def main():
    wanted = sys.argv[2:]
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(sys.argv[1], operation_timeout_seconds=10, logger=logger)
    failed = 0
    for scenario in SCENARIOS:
        if wanted and scenario.__name__ not in wanted:
            continue
        try:
            scenario(client)
            print("ok  ", scenario.__name__, flush=True)
        except Exception as error:
            failed += 1
            print("FAIL", scenario.__name__, type(error).__name__, error, flush=True)
    client.close()
    sys.stdout.flush()
    os._exit(1 if failed else 0)


main()
