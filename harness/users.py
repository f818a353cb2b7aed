"""Users of a cluster with SCRAM, known before its first node starts (rule B9.20)."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from random import Random

from kce.broker_stub.security.scram import MIN_ITERATIONS, ScramCredential, ScramMechanism
from kce.zookeeper.kafka_zk_client import KafkaZkClient

SALT_BYTES = 16


async def write_users(zk: KafkaZkClient, passwords: Mapping[str, str], random: Random) -> None:
    """Write the credentials of each user for both mechanisms, beside what the user has already."""
    for user, password in passwords.items():
        name = urllib.parse.quote(user, safe="")
        config = dict(await zk.get_config("users", name))
        for mechanism in ScramMechanism:
            salt = random.randbytes(SALT_BYTES)
            credential = ScramCredential.of_password(mechanism, password, MIN_ITERATIONS, salt)
            config[mechanism.mechanism_name] = str(credential)
        await zk.put_config("users", name, config)
