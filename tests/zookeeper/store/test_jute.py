"""ZooKeeper's bytes: what is sent, against kazoo's own serializers, and what comes back, cut short everywhere."""

from __future__ import annotations

import functools
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kazoo.protocol import serialization as kz
from kazoo.security import OPEN_ACL_UNSAFE

from kce.zookeeper.store import (
    Acl,
    BadVersion,
    Check,
    Create,
    Delete,
    MultiFailed,
    NodeData,
    NoNode,
    Op,
    SessionExpired,
    SetData,
    Stat,
    jute,
)

OPS: list[Op] = [
    Check("/e", 3),
    Create("/a/ü", b"data", ephemeral=True, sequential=True),
    Create("/a/b"),
    SetData("/a", b"x" * 300, 7),
    Delete("/a/c"),
]
STAT = kz.stat_struct.pack(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
EXPECTED_STAT = Stat(czxid=1, mzxid=2, ctime=3, mtime=4, version=5, cversion=6, ephemeral_owner=8, pzxid=11)


def header(opcode: int, error: int = 0) -> bytes:
    return struct.pack(">i?i", opcode, False, error)


END = struct.pack(">i?i", -1, True, -1)


@pytest.mark.parametrize("chroot", ["", "/some/root"])
def test_a_multi_is_what_kazoo_would_send(chroot: str) -> None:  # rule 1.3: no data is null
    theirs = kz.Transaction(
        [
            kz.CheckVersion(chroot + "/e", 3),
            kz.Create(chroot + "/a/ü", b"data", OPEN_ACL_UNSAFE, 3),
            kz.Create(chroot + "/a/b", None, OPEN_ACL_UNSAFE, 0),
            kz.SetData(chroot + "/a", b"x" * 300, 7),
            kz.Delete(chroot + "/a/c", -1),
        ]
    )
    assert jute.multi(OPS, chroot) == theirs.serialize()


def test_a_multi_read_and_set_watches() -> None:
    body = jute.multi_read(jute.GET_DATA, ["/", "/x"], "/root")
    one, two = kz.GetData("/root", None).serialize(), kz.GetData("/root/x", None).serialize()
    assert body == header(4, -1) + bytes(one) + header(4, -1) + bytes(two) + END
    assert jute.set_watches(9, ["/d"], [], ["/c", "/k"]) == b"".join(
        [
            struct.pack(">qi", 9, 1), kz.write_string("/d"),
            struct.pack(">i", 0),
            struct.pack(">i", 2), kz.write_string("/c"), kz.write_string("/k"),
        ]
    )  # fmt: skip


def answer_to_multi() -> bytes:
    path = kz.write_string("/root/a/ü0000000001")
    return b"".join(
        [header(13), header(1), path, header(1), kz.write_string("/root/a/b"), header(5), STAT, header(2), END]
    )


def test_answers_to_a_multi() -> None:
    results = jute.read_multi(b"reply" + answer_to_multi(), 5, OPS, "/root")
    assert results == [None, "/a/ü0000000001", "/a/b", EXPECTED_STAT, None]
    errors = [0, 0, -103, -2, -2]
    failed = jute.read_multi(b"".join(header(-1, e) + struct.pack(">i", e) for e in errors) + END, 0, OPS)
    assert isinstance(failed, MultiFailed)
    assert (failed.index, type(failed.error), failed.error.args) == (2, BadVersion, ("BadVersion: /a/b",))


def test_answers_to_a_multi_read() -> None:
    data = header(4) + struct.pack(">i", 3) + b"abc" + STAT
    empty = header(4) + struct.pack(">i", -1) + STAT
    missing = header(-1, -101) + struct.pack(">i", -101)
    strange = header(-1, -5) + struct.pack(">i", -5)
    found, none, absent, refused = jute.read_data(data + empty + missing + strange + END, 0, ["/a", "/b", "/c", "/d"])
    assert (found, none) == (NodeData(b"abc", EXPECTED_STAT), NodeData(b"", EXPECTED_STAT))
    assert isinstance(absent, NoNode)
    assert absent.path == "/c"
    assert str(refused) == "ZooKeeper error -5 on /d"
    decoded = jute.read_decoded(
        lambda data, version: (data, version),
        b"?" + data + missing + empty + strange + END,
        1,
        ["/a", "/b", "/c", "/d"],
    )
    version = EXPECTED_STAT.version
    assert (decoded[0], decoded[2]) == ((b"abc", version), (b"", version))
    assert [str(error) for error in (decoded[1], decoded[3])] == ["NoNode: /b", "ZooKeeper error -5 on /d"]
    names = header(8) + struct.pack(">i", 2) + kz.write_string("z") + kz.write_string("ä")
    listed = jute.read_children(b"??" + names + missing + strange + names + END, 2, ["/a", "/c", "/d", "/b"])
    assert listed[0] == listed[3] == ["z", "ä"]
    assert [str(error) for error in listed[1:3]] == ["NoNode: /c", "ZooKeeper error -5 on /d"]
    assert jute.read_names(b"?" + struct.pack(">i", 2) + kz.write_string("z") + kz.write_string("a"), 1) == ["a", "z"]
    assert jute.read_path(b"?" + kz.write_string("/a") + STAT, 1) == "/a"
    assert jute.read_stat(b"?" + STAT, 1) == EXPECTED_STAT
    for size, content in ((3, b"abc"), (0, b""), (-1, b"")):
        assert jute.read_node(b"?" + struct.pack(">i", size) + content + STAT, 1) == NodeData(content, EXPECTED_STAT)


NAMES = st.lists(st.one_of(st.text("ab\0", max_size=4), st.sampled_from(["a" * 127, "a" * 128, "ä", "b\0\0\0\1"])))


@example(["topic", "a" * 127, "b"], 0, b"")
@example(["a" * 128], 0, b"")
@example(["\u00e4", "a"], 0, b"")
@example(["", "a"], 0, b"")
@example(["a", "b\0\0\0\1"], 0, b"")
@example(["a"], 1, b"\0\0\0\5abc")
@example([], 1, b"\1\0\0\0\0")
@given(NAMES, st.sampled_from([-1, 0, 0, 0, 1]), st.binary(max_size=3))
def test_names_read_at_once_or_one_by_one(names: list[str], more: int, rest: bytes) -> None:
    strings = (struct.pack(">i", len(name.encode())) + name.encode() for name in names)
    answer = b"?" + struct.pack(">i", len(names) + more) + b"".join(strings) + rest

    def one_by_one() -> list[str]:
        return jute._names(answer, 5, len(names) + more)[0]

    try:
        expected = one_by_one()
    except (ValueError, struct.error):
        with pytest.raises((ValueError, struct.error)):
            jute.read_names(answer, 1)
    else:
        assert jute.read_names(answer, 1) == expected
    assert more or rest or jute.read_names(answer, 1) == sorted(names)


@pytest.mark.parametrize("cut", range(len(answer_to_multi()) - len(END)))
def test_short_answers_are_refused(cut: int) -> None:
    with pytest.raises((ValueError, struct.error)):
        jute.read_multi(answer_to_multi()[:cut], 0, OPS, "/root")


def test_an_answer_that_ends_early_is_refused() -> None:
    with pytest.raises(ValueError, match="a multi of 5 has 1 answers"):
        jute.read_multi(header(13) + END, 0, OPS)


def test_absurd_lengths_are_refused() -> None:
    for length in (-5, 1 << 30):
        with pytest.raises(ValueError, match="a string of"):
            jute.read_children(header(8) + struct.pack(">ii", 1, length) + b"abc", 0, ["/a"])
    with pytest.raises(struct.error):
        jute.read_data(header(4) + struct.pack(">i", 1 << 30) + b"abc", 0, ["/a"])
    decoded = functools.partial(jute.read_decoded, lambda data, version: data)
    for read in (jute.read_data, decoded, jute.read_children):
        with pytest.raises(ValueError, match="a multiRead of 2 has 0 answers"):
            read(END + b"\0" * 90, 0, ["/a", "/b"])


def test_acls_that_are_read() -> None:
    def string(text: str) -> bytes:
        return struct.pack(">i", len(text.encode())) + text.encode()

    one, two = Acl(31, "world", "anyone"), Acl(1, "sasl", "b\u00fccher")
    entries = [struct.pack(">i", acl.permissions) + string(acl.scheme) + string(acl.id) for acl in (one, two)]
    assert jute.read_acls(b"??" + struct.pack(">i", 2) + entries[0] + entries[1] + STAT, 2) == (one, two)
    assert jute.read_acls(struct.pack(">i", 0) + STAT, 0) == ()
    for cut in range(len(entries[0])):
        with pytest.raises((ValueError, struct.error)):
            jute.read_acls(struct.pack(">i", 1) + entries[0][:cut], 0)


def test_operations_are_split_into_multis() -> None:
    def split(ops: list[Op]) -> list[range]:
        return list(jute.batches(ops))

    small, half = Delete("/a"), SetData("/a", bytes(jute.REQUEST_BYTES // 2))
    assert split([]) == []
    assert split([small]) == [range(1)]
    assert split([small] * jute._MULTI_MOST) == [range(jute._MULTI_MOST)]
    assert split([small] * (jute._MULTI_MOST + 1)) == [
        range(jute._MULTI_MOST),
        range(jute._MULTI_MOST, jute._MULTI_MOST + 1),
    ]
    assert split([half, half, small]) == [range(1), range(1, 3)]
    huge = SetData("/a", bytes(2 * jute.REQUEST_BYTES))
    assert split([huge, huge, small]) == [range(1), range(1, 2), range(2, 3)]
    exact = SetData("/a", bytes(jute.REQUEST_BYTES - jute.op_bytes(small) - jute.op_bytes(SetData("/a", b""))))
    assert split([exact, small]) == [range(2)]
    assert split([exact, small, small]) == [range(2), range(2, 3)]


@pytest.mark.parametrize("chroot", ["", "/some/root"])
def test_a_container_is_created_below_the_chroot(chroot: str) -> None:
    sent = jute.create_container(Create("/c", b"x", container=True), chroot, (Acl(31, "world", "anyone"),))
    acls = struct.pack(">ii", 1, 31) + kz.write_string("world") + kz.write_string("anyone")
    assert sent == kz.write_string(f"{chroot}/c") + struct.pack(">i", 1) + b"x" + acls + struct.pack(">i", 4)


def test_requests_about_acls_and_single_nodes() -> None:
    two = (Acl(1, "world", "anyone"), Acl(31, "digest", "a:b"))
    packed = b"".join(struct.pack(">i", a.permissions) + kz.write_string(a.scheme) + kz.write_string(a.id) for a in two)
    assert jute.get_acl("/a") == kz.write_string("/a")
    assert jute.set_acl("/a", two) == kz.write_string("/a") + struct.pack(">i", 2) + packed + struct.pack(">i", -1)
    assert jute.read("/ü") == kz.write_string("/ü") + b"\0"
    assert jute.read("/a", watch=True) == kz.write_string("/a") + b"\1"
    rights = jute.multi([Create("/a", b"x")], "/root", lambda path: two if path == "/a" else ())
    assert struct.pack(">i", 2) + packed + struct.pack(">i", 0) + END in rights


def test_the_largest_operation_is_too_large() -> None:
    failed = jute.too_large([SetData("/a", b"x" * 10), Create("/b", b"x" * 20), Delete("/c" * 9), Check("/d", 1)])
    assert (failed.index, str(failed.error)) == (1, "TooLarge: /b")
    sizes = [jute.op_bytes(op) - jute.op_bytes(Delete("")) for op in (*OPS, Delete(""))]
    assert sizes == [2, 8, 4, 302, 4, 0]


@pytest.mark.parametrize("chroot", ["", "/root"])
def test_events_of_watches(chroot: str) -> None:
    for path in ("/", "/a/é"):
        whole = jute.whole(chroot, path).encode()
        assert jute.read_watch(b"header" + struct.pack(">iii", 4, 3, len(whole)) + whole, 6) == (4, whole.decode())
        assert jute.below(chroot, whole.decode()) == path


def test_strings_may_be_empty() -> None:
    assert jute._read_string(b"\0\0\0\0", 0) == ("", 4)
    with pytest.raises(ValueError, match="a string of -1 bytes at offset 0 of 4"):
        jute._read_string(b"\xff\xff\xff\xff", 0)


def test_errors_of_an_ended_session_are_raised() -> None:
    for code in (-112, -115, -118):
        with pytest.raises(SessionExpired, match=f"ZooKeeper error {code}"):
            jute.error(code, "/a")
    assert isinstance(jute.error(-101, "/a"), NoNode)
    assert str(jute.error(-999, "/a")) == "ZooKeeper error -999 on /a"
