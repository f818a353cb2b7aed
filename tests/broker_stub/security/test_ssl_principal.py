"""Names of certificates (rule B9.2): the cases of Kafka's SslPrincipalMapperTest, and subjects as Java prints them."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from kce.broker_stub.security.ssl_principal import NoMatchingRule, SslPrincipalMapper, subject_of

NAME = "CN=Duke, OU=ServiceUsers, O=Org, C=US"


@pytest.mark.parametrize(
    "rules",
    [
        "DEFAULT", "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT",
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L", "RULE:^cn=(.?),ou=(.?),dc=(.?),dc=(.?)$/$1@$2/U",
        "RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/", "RULE:^CN=([^,DEFAULT,]+)(,.*|$)/$1/",
    ],
)  # fmt: skip
def test_valid_rules(rules: str) -> None:
    SslPrincipalMapper(rules)


@pytest.mark.parametrize(
    "rules",
    [
        "default", "DEFAUL", "DEFAULT/L", "DEFAULT/U", "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U", "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
    ],
)  # fmt: skip
def test_invalid_rules(rules: str) -> None:
    with pytest.raises(ValueError, match="invalid rule"):
        SslPrincipalMapper(rules)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "Duke@SME"),
        ("cn=duke,ou=JavaSoft,dc=domain,dc=com", "DUKE@JAVASOFT"),
        ("OU=JavaSoft,dc=domain,dc=com", "OU=JavaSoft,dc=domain,dc=com"),
    ],
)
def test_the_first_rule_that_matches(subject: str, name: str) -> None:
    mapper = SslPrincipalMapper(
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/, "
        "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"
    )
    assert mapper.name(subject) == name


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("RULE:^CN=(\\w+).*$/$1$2/", "Duke$2"), ("RULE:^CN=(\\w+).*$/$12/", "Duke2"),
        ("RULE:^CN=(?<user>\\w+).*$/a\\/\\$b $1/U", "A/$B DUKE"), ("RULE:^CN=(\\w+).*$/$0/L", NAME.lower()),
    ],
)  # fmt: skip
def test_references_to_groups(rules: str, name: str) -> None:
    assert SslPrincipalMapper(rules).name(NAME) == name


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("RULE:^CN=(?<user>\\w+).*$/${user}!/", "CN=Duke,O=x", "Duke!"),
        ("RULE:^CN=(?:a|(b)).*$/x$1/", "CN=a", "x"), ("RULE:^CN=\\w+$/$0/", "CN=a", "CN=a"),
        ("RULE:^CN=(\\w+).*$/$1/", "CN=Müller", "M"), ("RULE:(?i)^cn=k$/x/, DEFAULT", "CN=\u212a", "CN=\u212a"),
    ],
)  # fmt: skip
def test_rules_are_read_as_java_reads_them(rules: str, subject: str, name: str) -> None:
    assert SslPrincipalMapper(rules).name(subject) == name


@pytest.mark.parametrize("replacement", ["$1", "$10", "$", "$a", "${a}", "${", "x$"])
def test_a_reference_to_a_group_that_is_not_there(replacement: str) -> None:
    """Kafka closes the connection, and does not try the next rule."""
    with pytest.raises(NoMatchingRule, match="a group that is not there"):
        SslPrincipalMapper(f"RULE:^CN=.*$/{replacement}/, DEFAULT").name("CN=a")


@pytest.mark.parametrize("pattern", ["[a-z&&[^d]]", "[[C]N]", "\\p{Alpha}"])
def test_what_only_java_has_in_patterns_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="invalid pattern"):
        SslPrincipalMapper(f"RULE:^CN={pattern}*$/x/")


def test_no_rule_applies() -> None:
    with pytest.raises(NoMatchingRule, match=r"no rule applies to CN=a"):
        SslPrincipalMapper("RULE:^OU=(.*)$/$1/").name("CN=a")


def certificate(*attributes: x509.RelativeDistinguishedName) -> bytes:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name(attributes)
    day = datetime.datetime(2024, 1, 1)
    builder = x509.CertificateBuilder(x509.Name([]), name, key.public_key(), 1, day, day)
    return builder.sign(key, SHA256()).public_bytes(Encoding.DER)


def rdn(*pairs: tuple[x509.ObjectIdentifier, str]) -> x509.RelativeDistinguishedName:
    return x509.RelativeDistinguishedName(x509.NameAttribute(oid, text, _validate=False) for oid, text in pairs)


@pytest.mark.parametrize(
    ("attributes", "subject"),
    [
        ((), ""),
        (((NameOID.COUNTRY_NAME, "DE"),), "C=DE"),
        (((NameOID.COMMON_NAME, 'a,b+c"d\\e<f>g;h=i#j'),), 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h\\=i\\#j'),
        (((NameOID.COMMON_NAME, "  ü b "),), "CN=\\ \\ ü b\\ "),
        (((NameOID.COMMON_NAME, "a"), (NameOID.USER_ID, "b")), "CN=a+UID=b"),
        (((NameOID.EMAIL_ADDRESS, "a@b.c"),), "1.2.840.113549.1.9.1=#1605" + b"a@b.c".hex()),
    ],
)  # fmt: skip
def test_the_subject_of_a_certificate(attributes: tuple[tuple[x509.ObjectIdentifier, str], ...], subject: str) -> None:
    assert subject_of(certificate(*([rdn(*attributes)] if attributes else []))) == subject


def test_a_subject_is_written_backwards() -> None:
    names = [rdn((NameOID.COUNTRY_NAME, "DE")), rdn((NameOID.ORGANIZATION_NAME, "o")), rdn((NameOID.COMMON_NAME, "c"))]
    assert subject_of(certificate(*names)) == "CN=c,O=o,C=DE"


@pytest.mark.parametrize("length", [0, 1, 40, 120])
def test_what_is_no_certificate(length: int) -> None:
    with pytest.raises(ValueError, match="certificate"):
        subject_of(certificate(rdn((NameOID.COMMON_NAME, "c")))[:length])


def der(tag: int, *parts: bytes) -> bytes:
    """An element with that content, in the shortest form of its length."""
    content = b"".join(parts)
    size = len(content)
    length = bytes([size]) if size < 128 else (0x80 + (size > 255) + 1).to_bytes() + size.to_bytes(1 + (size > 255))
    return bytes([tag]) + length + content


def hand_made(
    *attributes: bytes, fields: int = 5, number: int = 0x02, subject: int = 0x30, version: bool = True
) -> bytes:
    """A certificate with nothing but what is read: each attribute is a name of its own."""
    content = [der(number, b"\1"), *[der(0x30)] * 3, der(subject, *(der(0x31, one) for one in attributes))]
    return der(0x30, der(0x30, *[der(0xA0, b"v")] * version, *content[:fields]), b"signature")


def attribute(value: bytes, *, tag: int = 0x0C, oid: bytes = b"\x55\4\3", oid_tag: int = 0x06) -> bytes:
    return der(0x30, der(oid_tag, oid), der(tag, value))


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 255, 256, 300, 70_000])
def test_lengths_of_elements(size: int) -> None:
    if size > 2**16:
        length = b"\x83" + size.to_bytes(3, "big")
        content = der(0x06, b"\x55\4\3") + b"\x0c" + length + b"x" * size
        one = b"\x30\x83" + len(content).to_bytes(3, "big") + content
        name = b"\x31\x83" + len(one).to_bytes(3, "big") + one
        names = b"\x30\x83" + len(name).to_bytes(3, "big") + name
        rest = der(0x02, b"\1") + der(0x30) * 3 + names
        signed = b"\x30\x83" + len(rest).to_bytes(3, "big") + rest
        data = b"\x30\x83" + len(signed).to_bytes(3, "big") + signed
    else:
        data = hand_made(attribute(b"x" * size))
    assert subject_of(data) == "CN=" + "x" * size
    for cut in (data[:-1], data[:2], data[:3], data[:1]):
        with pytest.raises(ValueError, match="cut off"):
            subject_of(cut)


def test_what_a_certificate_must_have() -> None:
    assert subject_of(hand_made(version=False)) == ""
    assert subject_of(hand_made(attribute(b"b"), attribute(b"a"))) == "CN=a,CN=b"
    for bad in (
        hand_made(fields=4), hand_made(fields=0), hand_made(fields=0, version=False), hand_made(number=3),
        hand_made(subject=0x31),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="not a certificate"):
            subject_of(bad)
    with pytest.raises(ValueError, match="has no type"):
        subject_of(hand_made(attribute(b"a", oid_tag=7)))
    with pytest.raises(ValueError, match="empty type"):
        subject_of(hand_made(attribute(b"a", oid=b"")))


@pytest.mark.parametrize(
    ("made", "subject"),
    [
        (attribute(b"\0a\0b", tag=0x1E), "CN=\\00a\\00b"), (attribute(b"\xc3\xbc", tag=0x14), "CN=ü"),
        (attribute(b"a", tag=0x13), "CN=a"), (attribute(b"a", tag=0x16), "CN=a"), (attribute(b"a", tag=0x1B), "CN=a"),
        (attribute(b"1", tag=0x12), "CN=#120131"), (attribute(b"a", tag=0x1A), "CN=#1a0161"),
        (attribute(b"\xff"), "CN=\ufffd"), (attribute(b"a\0b"), "CN=a\\00b"), (attribute(b" "), "CN=\\ "),
        (attribute(b" \r"), "CN=\\ \\\r"), (attribute(b"\ra \r"), "CN=\\\ra\\ \\\r"),
        (attribute(b"\na \n"), "CN=\na \n"),
        (attribute(b"a", tag=0x04), "CN=#040161"), (attribute(b"a", oid=b"\x55\4\x2a"), "2.5.4.42=#0c0161"),
        (attribute(b"a", oid=b"\0\x81\0"), "0.0.128=#0c0161"), (attribute(b"a", oid=b"\x28"), "1.0=#0c0161"),
        (attribute(b"a", oid=b"\x77"), "2.39=#0c0161"), (attribute(b"a", oid=b"\x4f\1"), "1.39.1=#0c0161"),
        (attribute(b"a", oid=b"\x50\xff\x7f"), "2.0.16383=#0c0161"),
    ],
)  # fmt: skip
def test_attributes_byte_by_byte(made: bytes, subject: str) -> None:
    assert subject_of(hand_made(made)) == subject
