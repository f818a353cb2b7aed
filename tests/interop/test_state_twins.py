"""Groups, transactions, logins and quotas in random states are answered as real Kafka answers them.

Covers: tests/interop/group_requests.py, tests/interop/group_twins.py, tests/interop/txn_twins.py,
tests/interop/login_twins.py, tests/interop/quota_requests.py, tests/interop/quota_twins.py,
tests/interop/connection_twins.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop import connection_twins, group_twins, login_twins, quota_twins, txn_twins

pytestmark = pytest.mark.slow


async def test_members_of_groups_are_answered_alike(tmp_path: Path) -> None:  # sections 3 to 9 of the group rules
    reports = await group_twins.run(tmp_path, seed=2, steps=400, restarts=1)
    assert not reports, "\n".join(reports)


async def test_transactions_are_answered_alike(tmp_path: Path) -> None:  # sections 4 to 11 of the transaction rules
    reports = await txn_twins.run(tmp_path, seed=2, steps=600, restarts=1)
    assert not reports, "\n".join(reports)


async def test_logins_are_answered_alike(tmp_path: Path) -> None:  # rules B9.5 to B9.25
    reports = await login_twins.run(tmp_path, seed=2, steps=500)
    assert not reports, "\n".join(reports)


async def test_quotas_of_clients_apply_alike(tmp_path: Path) -> None:  # rules B8.1 to B8.17
    reports = await quota_twins.run(tmp_path, seed=2, steps=200)
    assert not reports, "\n".join(reports)


async def test_limits_of_connections_apply_alike(tmp_path: Path) -> None:  # rules B1.45 to B1.52
    reports = await connection_twins.run(tmp_path, seed=3, steps=60)
    assert not reports, "\n".join(reports)
