"""Somebody else's broker under our controller: a skeleton.

    pytest examples/test_your_broker.py

The broker here registers in ZooKeeper, listens, and answers the three control requests. Replace `Broker` with a process
of yours: what the test needs of it is that it registers as broker 7 and does what the controller says.
"""

import json
from contextlib import asynccontextmanager

import pytest
import trio
from kazoo.client import KazooClient

from kce import wire

ID = 7
RESPONSES = {
    wire.LeaderAndIsrRequest: wire.LeaderAndIsrResponse,
    wire.UpdateMetadataRequest: wire.UpdateMetadataResponse,
    wire.StopReplicaRequest: wire.StopReplicaResponse,
}


class Broker:
    """``led``: the leader epoch of each partition that it leads. ``live``: the brokers that it knows."""

    def __init__(self) -> None:
        self.led: dict[tuple[str, int], int] = {}
        self.live: set[int] = set()

    def apply(self, request: wire.Message) -> None:
        if isinstance(request, wire.UpdateMetadataRequest):
            self.live = {broker.id for broker in request.live_brokers}
        elif isinstance(request, wire.LeaderAndIsrRequest):
            for topic in request.topic_states:
                for state in topic.partition_states:
                    key = topic.topic_name, state.partition_index
                    if state.leader == ID:
                        self.led[key] = state.leader_epoch
                    else:
                        self.led.pop(key, None)

    async def serve(self, stream: trio.SocketStream) -> None:
        """Answer the requests of one connection."""
        frames = wire.FrameBuffer()
        async with stream:
            async for data in stream:
                frames.receive_data(data)
                while (frame := frames.next_frame()) is not None:
                    header, request = wire.decode_request(frame)
                    if type(request) not in RESPONSES:  # such as a follower's Fetch: yours answers it
                        return
                    self.apply(request)
                    response = wire.encode_response(
                        RESPONSES[type(request)](),
                        api_version=header.api_version,
                        correlation_id=header.correlation_id,
                    )
                    await stream.send_all(wire.frame(response))

    @asynccontextmanager
    async def running(self, zookeeper: str):
        """Registered in ZooKeeper, as Kafka's brokers do: an ephemeral node with its listener."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        names = ("CONTROL", "DATA")
        registration = {
            "version": 5, "host": "127.0.0.1", "port": port, "jmx_port": -1, "timestamp": "0", "features": {},
            "endpoints": [f"{name}://127.0.0.1:{port}" for name in names],
            "listener_security_protocol_map": dict.fromkeys(names, "PLAINTEXT"),
        }  # fmt: skip
        client = KazooClient(zookeeper)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self.serve, [listener])
            await trio.to_thread.run_sync(client.start)
            try:
                content = json.dumps(registration).encode()
                await trio.to_thread.run_sync(lambda: client.create(f"/brokers/ids/{ID}", content, ephemeral=True))
                yield
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(client.stop)
                    client.close()
            nursery.cancel_scope.cancel()


@pytest.mark.kafka_cluster(brokers=1)
async def test_it_leads_what_the_controller_gives_it(kafka_cluster):
    broker = Broker()
    async with broker.running(kafka_cluster.zookeeper):

        async def is_known():
            return broker.live == {1, ID}

        await kafka_cluster.wait_until(is_known, "the broker to be known")
        await kafka_cluster.create_topic("orders", assignment={0: [ID, 1], 1: [1, ID]})

        async def leads():
            return broker.led == {("orders", 0): 0}

        await kafka_cluster.wait_until(leads, "the broker to lead")
        (request,) = kafka_cluster.history.messages(api="LeaderAndIsr", to=ID)
        assert request.topic_states[0].topic_name == "orders"
