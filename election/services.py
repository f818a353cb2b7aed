"""High-availability services: election and retrieval for each component of a process, from one configuration.

NONE         fixed addresses, or within one process an embedded election
ZOOKEEPER    one client, and the configured layout
NAME         a factory registered as entry point NAME in the group below (rule E10.2)
"""

from __future__ import annotations

import importlib.metadata
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import trio

from kce.election.api import LeaderElectionService, LeaderRetrievalService
from kce.election.config import AclMode, HighAvailabilityConfig, HighAvailabilityMode
from kce.election.embedded import EmbeddedLeaderService
from kce.election.errors import ConfigurationError, IllegalElectionState, raise_first
from kce.election.paths import REST_SERVER, is_job_id, zookeeper_path
from kce.election.retrieval import DefaultLeaderRetrievalService
from kce.election.service import MultipleComponentLeaderElectionService
from kce.election.session import ElectionSession, FatalErrorHandler
from kce.election.standalone import StandaloneLeaderElectionService, StandaloneLeaderRetrievalService
from kce.election.zookeeper import election_driver_factory, retrieval_driver_factory
from kce.zookeeper.store import CREATOR_ALL_ACL, Delete, MetadataStore, NoNode, NotEmpty, StoreUnavailable, value
from kce.zookeeper.store.kazoo import KazooStore

log = logging.getLogger(__name__)

ENTRY_POINTS = "kafka_controller_emulator.high_availability"
UNKNOWN_ADDRESS = "UNKNOWN"

Connect = Callable[[HighAvailabilityConfig], Awaitable[MetadataStore]]


class ClientHighAvailabilityServices(ABC):
    """The services of a client: retrieval of the REST server's leader (rule E10.3)."""

    @abstractmethod
    def leader_retrieval(self, component_id: str, default_address: str | None = None) -> LeaderRetrievalService:
        """A new service, not started. Components are those of ``paths`` and 32-digit job ids; a default address is
        for services that elect nobody. Raises IllegalElectionState once closed."""

    @abstractmethod
    async def aclose(self) -> None:
        """End services and client; deletes no data (rule E10.5). Raises the first error, with the others attached."""


class HighAvailabilityServices(ClientHighAvailabilityServices):
    @abstractmethod
    def leader_election(self, component_id: str) -> LeaderElectionService:
        """A new service, not started. Raises IllegalElectionState once closed."""

    async def clean_up_all_data(self) -> None:
        """Delete the cluster's data; does not close (rules E10.6, E10.7)."""

    async def clean_up_job_data(self, job_id: str) -> None:
        """Delete the job's data. Raises ValueError for an invalid job id."""
        if not is_job_id(job_id):
            raise ValueError(f"{job_id!r} is not a job id: 32 lowercase hex digits")


class HighAvailabilityServicesFactory(Protocol):
    """The class of an entry point, instantiated without arguments."""

    async def create_services(
        self, config: HighAvailabilityConfig, nursery: trio.Nursery
    ) -> HighAvailabilityServices: ...

    async def create_client_services(
        self, config: HighAvailabilityConfig, nursery: trio.Nursery
    ) -> ClientHighAvailabilityServices: ...


class StandaloneHaServices(HighAvailabilityServices):
    """Fixed addresses by component, the default id for all (rule E9.4)."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = dict(addresses)
        self._closed = False

    def _check(self) -> None:
        if self._closed:
            raise IllegalElectionState("the high-availability services are closed")

    def leader_election(self, component_id: str) -> LeaderElectionService:
        self._check()
        return StandaloneLeaderElectionService()

    def leader_retrieval(self, component_id: str, default_address: str | None = None) -> LeaderRetrievalService:
        self._check()
        if is_job_id(component_id):
            return StandaloneLeaderRetrievalService(default_address or UNKNOWN_ADDRESS)
        if component_id not in self._addresses:
            raise ConfigurationError(f"without election, the address of {component_id} must be given")
        return StandaloneLeaderRetrievalService(self._addresses[component_id])

    async def aclose(self) -> None:
        self._closed = True


class EmbeddedHaServices(HighAvailabilityServices):
    """One leader service per component and per job, created on first use."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._services: dict[str, EmbeddedLeaderService] = {}
        self._closed = False

    def leader_service(self, component_id: str) -> EmbeddedLeaderService:
        """Also for tests, which may revoke and grant leadership (rule E9.11)."""
        if self._closed:
            raise IllegalElectionState("the high-availability services are closed")
        if component_id not in self._services:
            self._services[component_id] = EmbeddedLeaderService(self._nursery)
        return self._services[component_id]

    def leader_election(self, component_id: str) -> LeaderElectionService:
        return self.leader_service(component_id).create_leader_election_service()

    def leader_retrieval(self, component_id: str, default_address: str | None = None) -> LeaderRetrievalService:
        return self.leader_service(component_id).create_leader_retrieval_service()

    async def aclose(self) -> None:
        """Shut down all services (rule E9.14)."""
        self._closed = True
        await _each([service.shutdown for service in self._services.values()])


class ZooKeeperHaServices(HighAvailabilityServices):
    """One client for all; a latch for each component or one for all, depending on the layout."""

    def __init__(
        self,
        config: HighAvailabilityConfig,
        store: MetadataStore,
        nursery: trio.Nursery,
        *,
        fatal_error_handler: FatalErrorHandler | None = None,
    ) -> None:
        self._config = config
        self._nursery = nursery
        self._paths = config.paths
        handler = {} if fatal_error_handler is None else {"fatal_error_handler": fatal_error_handler}
        self.session = ElectionSession(store, nursery, **handler)
        self._elections: list[MultipleComponentLeaderElectionService] = []
        self._closed = False

    def _check(self) -> None:
        if self._closed:
            raise IllegalElectionState("the high-availability services are closed")

    def leader_election(self, component_id: str) -> LeaderElectionService:
        self._check()
        if not self._elections or not self._config.layout.shares_latch:
            factory = election_driver_factory(
                self.session,
                self._paths,
                component_id,
                tolerate_suspended_connections=self._config.tolerate_suspended_connections,
                retry_wait_s=self._config.retry_wait_ms / 1000,
            )
            self._elections.append(MultipleComponentLeaderElectionService(factory, self._nursery))
        return self._elections[-1].create_leader_election(component_id)

    def leader_retrieval(self, component_id: str, default_address: str | None = None) -> LeaderRetrievalService:
        self._check()
        factory = retrieval_driver_factory(
            self.session,
            self._paths.leader_path(component_id),
            tolerate_suspended_connections=self._config.tolerate_suspended_connections,
            retry_wait_s=self._config.retry_wait_ms / 1000,
        )
        return DefaultLeaderRetrievalService(factory, self._nursery)

    async def aclose(self) -> None:
        """Stop contenders first: an election with a contender fails to close, and ends with the session."""
        if not self._closed:
            self._closed = True
            await _each([*(election.aclose for election in self._elections), self.session.aclose])

    async def clean_up_all_data(self) -> None:
        """Delete the cluster's namespace, and its parents that are empty then (rule E10.6)."""
        path = self._paths.root
        await self.session.delete_tree(path)
        while (path := zookeeper_path(path.rpartition("/")[0])) != "/":
            (answer,) = await self.session.store.write([Delete(path)])
            if isinstance(answer, NotEmpty):
                return
            if not isinstance(answer, NoNode):
                value(answer)

    async def clean_up_job_data(self, job_id: str) -> None:
        await super().clean_up_job_data(job_id)
        for path in self._paths.job_paths(job_id):
            await self.session.delete_tree(path)


async def _each(steps: list[Callable[[], Awaitable[None]]]) -> None:
    """Run all steps, then raise the first error."""
    errors: list[Exception] = []
    for step in steps:
        try:
            await step()
        except Exception as e:  # noqa: BLE001 - raised below
            errors.append(e)
    raise_first(errors)


async def connect_to_zookeeper(config: HighAvailabilityConfig) -> MetadataStore:
    """Connect, with ``max-retry-attempts`` retries after ``retry-wait``. Raises StoreUnavailable."""
    wait_s = config.retry_wait_ms / 1000
    for attempt in range(config.max_retry_attempts + 1):
        try:
            return await KazooStore.connect(
                config.quorum,
                session_timeout_ms=config.session_timeout_ms,
                connection_timeout_ms=config.connection_timeout_ms,
                auth=config.authorization,
                acls_of=(lambda path: CREATOR_ALL_ACL) if config.acl is AclMode.CREATOR else None,  # rule E1.17
            )
        except StoreUnavailable as e:
            if attempt == config.max_retry_attempts:
                raise
            log.warning("%s; trying again in %g s", e, wait_s)
        await trio.sleep(wait_s)
        wait_s *= 2  # E10.15: the base of a back-off
    raise AssertionError


async def create_high_availability_services(
    config: HighAvailabilityConfig,
    nursery: trio.Nursery,
    *,
    addresses: Mapping[str, str] | None = None,
    single_process: bool = False,
    fatal_error_handler: FatalErrorHandler | None = None,
    connect: Connect = connect_to_zookeeper,
) -> HighAvailabilityServices:
    """The configured services. Without high availability: those of one process, or fixed ``addresses``.

    Raises ConfigurationError for a factory that is missing or fails. Without a ZooKeeper, it calls
    ``fatal_error_handler`` and raises StoreUnavailable.
    """
    if config.mode is HighAvailabilityMode.FACTORY:
        try:
            return await _factory(config).create_services(config, nursery)
        except Exception as e:
            raise ConfigurationError(f"high availability {config.mode_text!r} cannot be had: {e}") from e
    if config.mode is HighAvailabilityMode.NONE:
        return EmbeddedHaServices(nursery) if single_process else StandaloneHaServices(addresses or {})
    try:
        store = await connect(config)
    except StoreUnavailable as e:
        if fatal_error_handler is not None:
            fatal_error_handler(e)
        raise
    return ZooKeeperHaServices(config, store, nursery, fatal_error_handler=fatal_error_handler)


async def create_client_high_availability_services(
    config: HighAvailabilityConfig,
    nursery: trio.Nursery,
    *,
    rest_address: str | None = None,
    connect: Connect = connect_to_zookeeper,
) -> ClientHighAvailabilityServices:
    """Services for clients of the REST server."""
    if config.mode is HighAvailabilityMode.FACTORY:
        try:
            return await _factory(config).create_client_services(config, nursery)
        except Exception as e:
            raise ConfigurationError(f"high availability {config.mode_text!r} cannot be had: {e}") from e
    addresses = {REST_SERVER: rest_address} if rest_address else {}
    return await create_high_availability_services(config, nursery, addresses=addresses, connect=connect)


def _factory(config: HighAvailabilityConfig) -> HighAvailabilityServicesFactory:
    found = [e for e in importlib.metadata.entry_points(group=ENTRY_POINTS) if e.name == config.mode_text]
    if not found:
        raise ConfigurationError(f"there is no entry point {config.mode_text!r} in the group {ENTRY_POINTS}")
    factory: HighAvailabilityServicesFactory = found[0].load()()
    return factory
