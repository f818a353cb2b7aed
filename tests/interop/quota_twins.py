"""Random quotas of users and client ids, which both twins must apply alike.

    python -m tests.interop.quota_twins --seed 5 --steps 1000

Quotas of all kinds are set for users, client ids, both and their defaults, are removed, described, and asked for in
ways that are refused; clients write, read, create and delete partitions, and ask for other things. Samples last an
hour, so nothing that was used is forgotten, and a throttle time tells which quota applies, and who shares it.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from kce import wire
from tests.certificates import plain_users
from tests.interop.quota_requests import ADMIN, MUTATIONS, TOPIC, Script, Step
from tests.interop.twin import PATIENCE_S, Twin, differences
from tests.interop.twins import Restart, clusters, main_with_restarts, restarting

_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
SETTINGS: Final = {
    "listener.security.protocol.map": "CONTROL:PLAINTEXT,DATA:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.data.plain.sasl.jaas.config": plain_users(broker="secret"),
    "listener.name.data.oauthbearer.sasl.jaas.config": f'{_OAUTH} unsecuredLoginStringClaim_sub="broker";',
    "quota.window.num": "2", "quota.window.size.seconds": "3600",
    "controller.quota.window.num": "2", "controller.quota.window.size.seconds": "3600",
}  # fmt: skip
#: what has passed between the twins' answers
_TOLERANCE_MS: Final = 20_000
#: an answer comes within that, or the connection is muted
_MUTED_S: Final = 0.2
_EFFECT: Final = "leader.replication.throttled.rate"
_BROKER: Final = 4
_ENOUGH: Final = 5
_TOLD: Final = (*MUTATIONS, wire.AlterClientQuotasRequest, wire.DescribeClientQuotasRequest)


class QuotaTwin(Twin):
    """A connection of a client."""

    client_id: str | None = ADMIN
    user = ADMIN
    #: of errors
    compares_texts = False

    def of(self, user: str, client_id: str | None) -> QuotaTwin:
        """A connection of its own."""
        made = self.another()
        made.user, made.client_id = user, client_id
        return made

    def encoded(self, message: wire.Message, version: int) -> bytes:
        return wire.encode_request(message, api_version=version, correlation_id=1, client_id=self.client_id)

    def comparable(self, value: Any, name: str = "") -> Any:
        if (name == "error_message" and self.compares_texts) or isinstance(value, float):
            return str(value)
        return super().comparable(value, name)

    async def log_in(self) -> None:
        """With a token that is not signed: users may have any name."""
        claims = {"sub": self.user, "iat": 1, "exp": 99_999_999_999}
        header, payload = (
            base64.urlsafe_b64encode(json.dumps(of, separators=(",", ":")).encode()).rstrip(b"=").decode()
            for of in ({"alg": "none"}, claims)
        )
        token = f"n,,\x01auth=Bearer {header}.{payload}.\x01\x01".encode()
        await self.ask(wire.SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
        answer = await self.ask(wire.SaslAuthenticateRequest(auth_bytes=token), 2)
        assert isinstance(answer, wire.SaslAuthenticateResponse), answer
        assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b""), answer

    async def send(self, message: wire.Message, version: int) -> None:
        assert self._stream is not None
        await self._stream.send_all(wire.frame(self.encoded(message, version)))

    async def has_answer(self) -> bool:
        assert self._stream is not None
        try:
            return await self._frame(self._stream) is not None
        except trio.BrokenResourceError:
            return False

    async def alter(self, request: wire.AlterClientQuotasRequest, version: int, number: int) -> Any:
        """Wait until what was changed is known."""
        answer = await self.ask(request, version)
        await until_known(self, number)
        return answer


async def until_known(twin: Twin, number: int) -> None:
    """Until the broker knows of all changes of configurations so far: they become known in their order.

    ``number`` has not been used before.
    """
    change = wire.IncrementalAlterConfigsRequestAlterableConfig(name=_EFFECT, config_operation=0, value=str(number))
    resource = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=_BROKER, resource_name="1", configs=(change,)
    )
    await twin.ask(wire.IncrementalAlterConfigsRequest(resources=(resource,)), 1)
    wanted = wire.DescribeConfigsResource(resource_type=_BROKER, resource_name="1", configuration_keys=(_EFFECT,))
    with trio.fail_after(PATIENCE_S):
        while True:
            found = await twin.ask(wire.DescribeConfigsRequest(resources=(wanted,)), 4)
            assert isinstance(found, wire.DescribeConfigsResponse), found
            if [each.value for each in found.results[0].configs] == [str(number)]:
                return
            await trio.sleep(0.005)


async def _answers(both: Sequence[QuotaTwin], step: Step, number: int) -> list[dict[str, Any]]:
    """What is compared, with the throttle time."""
    found: list[dict[str, Any]] = []
    clients = [twin.of(step.user, step.client_id) for twin in both]
    try:
        for client in clients:
            await client.log_in()
            found.append(await _answer(client, step, number))
        if step.checks_mute:
            for client in clients:
                await client.send(wire.ApiVersionsRequest(), 0)
            for each, is_answered in zip(found, await _are_answered(clients), strict=True):
                each["answers another"] = is_answered
    finally:
        for client in clients:
            await client.disconnect()
    return found


async def _answer(client: QuotaTwin, step: Step, number: int) -> dict[str, Any]:
    message = step.message
    if isinstance(message, wire.ProduceRequest) and not message.acks:
        await client.send(message, step.version)
        return {}
    if isinstance(message, wire.AlterClientQuotasRequest) and step.user == ADMIN:
        answer = await client.alter(message, step.version, number)
    else:
        answer = await client.ask(message, step.version)
    if isinstance(answer, str):
        return {"answer": answer}
    client.compares_texts = isinstance(message, _TOLD)
    shown: dict[str, Any] = client.comparable(answer)
    if isinstance(message, wire.CreateTopicsRequest) and len(message.topics) > 1:  # Kafka's order is that of a hash map
        shown = {"codes": sorted(each["error_code"] for each in shown["topics"])}
    return {**shown, "throttle": getattr(answer, "throttle_time_ms", None)}


async def _are_answered(clients: Sequence[QuotaTwin]) -> list[bool]:
    """Whether each gets an answer at once; if one does, the other has longer."""
    found = [False] * len(clients)
    async with trio.open_nursery() as nursery:

        async def wait(i: int) -> None:
            found[i] = await clients[i].has_answer()
            if any(found):
                nursery.cancel_scope.deadline = trio.current_time() + (0 if all(found) else PATIENCE_S / 4)

        nursery.cancel_scope.deadline = trio.current_time() + _MUTED_S
        for i in range(len(clients)):
            nursery.start_soon(wait, i)
    return found


def _even(kafkas: dict[str, Any], ours: dict[str, Any]) -> None:
    """Throttle times are the same within the tolerance."""
    of_kafka, of_ours = kafkas.get("throttle"), ours.get("throttle")
    if of_kafka is not None and of_ours is not None and abs(of_kafka - of_ours) <= _TOLERANCE_MS:
        ours["throttle"] = of_kafka


@asynccontextmanager
async def _twins(folder: Path) -> AsyncIterator[tuple[tuple[QuotaTwin, QuotaTwin], Restart]]:
    async with clusters(folder, SETTINGS) as (kafka, zookeeper, cluster):
        both = (
            QuotaTwin("Kafka", kafka.address, "nowhere"),
            QuotaTwin("ours", cluster.bootstrap_servers(), "nowhere"),
        )

        try:
            for twin in both:
                await _ready(twin)
            yield both, restarting(both, kafka, zookeeper, cluster, _ready)
        finally:
            for twin in both:
                await twin.disconnect()


async def _ready(twin: QuotaTwin) -> None:
    """Wait until the broker leads the topic's partitions; the first time, make it."""
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                await twin.log_in()
                break
            except OSError:  # it does not listen yet
                await trio.sleep(0.05)
    topic = wire.CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1)
    listed = tuple(wire.ListOffsetsPartition(partition_index=i, timestamp=-1) for i in range(2))
    with trio.fail_after(PATIENCE_S):
        while True:
            await twin.ask(wire.CreateTopicsRequest(topics=(topic,), timeout_ms=20_000), 5)
            request = wire.ListOffsetsRequest(topics=(wire.ListOffsetsTopic(name=TOPIC, partitions=listed),))
            answer = await twin.ask(request, 7)
            assert isinstance(answer, wire.ListOffsetsResponse), answer
            if not any(each.error_code for each in answer.topics[0].partitions):
                return
            await trio.sleep(0.05)


async def run(folder: Path, *, seed: int, steps: int, restarts: int = 0) -> list[str]:
    """A report on each request whose answers differ."""
    reports: list[str] = []
    random = Random(seed)
    async with _twins(folder) as (both, restart_both):
        script = Script(Random(seed), int(time.time() * 1000))
        for twin in both:
            await twin.alter(script.first(), 1, 1)
        for number in range(steps):
            if restarts and number and number % (steps // (restarts + 1)) == 0:
                await restart_both(random.random() < 0.5)
            step = script.next()
            kafkas, ours = await _answers(both, step, number + 2)
            _even(kafkas, ours)
            if found := list(differences(kafkas, ours)):
                lines = "\n    ".join(found)
                reports.append(f"seed {seed}, step {number}: {str(step)[:1500]}\n    {lines}")
                if len(reports) == _ENOUGH:
                    break
            if isinstance(step.message, MUTATIONS):
                script.learn(step, kafkas)
    return reports


if __name__ == "__main__":
    sys.exit(main_with_restarts("python -m tests.interop.quota_twins", __doc__, run))
