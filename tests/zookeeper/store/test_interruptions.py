"""When connections break under the same requests again and again (rule 1.52)."""

from __future__ import annotations

from kce.zookeeper.store.interruptions import Interruptions, Verdict


def test_large_requests_are_refused_after_two_interruptions() -> None:
    interruptions = Interruptions(session_timeout_ms=6000)
    assert interruptions.add(3, 100.0) is Verdict.RESEND
    assert interruptions.add(3, 100.1) is Verdict.REFUSE_LARGE


def test_the_session_ends_after_its_timeout() -> None:
    interruptions = Interruptions(session_timeout_ms=6000)
    verdicts = [interruptions.add(1, now) for now in (100.0, 103.0, 105.9, 106.0)]
    assert verdicts == [Verdict.RESEND, Verdict.REFUSE_LARGE, Verdict.REFUSE_LARGE, Verdict.GIVE_UP]


def test_two_interruptions_never_end_the_session() -> None:
    interruptions = Interruptions(session_timeout_ms=6000)
    interruptions.add(1, 100.0)
    assert interruptions.add(1, 500.0) is Verdict.REFUSE_LARGE
    assert interruptions.add(1, 500.1) is Verdict.GIVE_UP


def test_progress_starts_the_count_again() -> None:
    interruptions = Interruptions(session_timeout_ms=6000)
    for i in range(3):
        interruptions.add(5, 100.0 + i)
    assert interruptions.add(4, 200.0) is Verdict.RESEND
    assert interruptions.add(4, 203.0) is Verdict.REFUSE_LARGE
    assert interruptions.add(4, 205.0) is Verdict.REFUSE_LARGE
