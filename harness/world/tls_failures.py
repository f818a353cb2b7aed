"""What a failure of TLS means and what to do about it, without OpenSSL's names and line numbers."""

from __future__ import annotations

import ssl
from typing import Final

#: of OpenSSL's verification
_EARLY, _EXPIRED = 9, 10
_UNTRUSTED: Final = range(18, 22)
_OTHER_NAME: Final = range(62, 65)
#: by OpenSSL's reason; Java's alerts are certificate unknown and bad certificate
_REASONS: Final = {
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust our certificate: its trust store lacks our authority",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer does not accept our certificate: it may not trust our authority",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer says that our certificate has expired: it must be renewed",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer does not accept our certificate, or misses one (ssl.keystore.*)",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer demands a certificate: set ssl.keystore.*",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer has shown no certificate, which ssl.client.auth=required demands",
}


def tls_failure(error: BaseException | None) -> str | None:
    """None for an error that is not of TLS, or not one by which Trio's stream broke."""
    cause = error if isinstance(error, ssl.SSLError) else getattr(error, "__cause__", None)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _unverified(cause)
    if isinstance(cause, ssl.SSLError):
        return _REASONS.get(getattr(cause, "reason", None) or "") or _text(cause)
    return None


def _unverified(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _UNTRUSTED:
        return "the peer's certificate is not trusted: ssl.truststore.* must have that of its authority"
    if error.verify_code == _EXPIRED:
        return "the peer's certificate, or that of its authority, has expired: it must be renewed"
    if error.verify_code == _EARLY:
        return "the peer's certificate, or that of its authority, is not valid yet: compare the clocks"
    said = error.verify_message.rstrip(".")
    if error.verify_code in _OTHER_NAME:
        return f"{said}: it must name that, or ssl.endpoint.identification.algorithm must be empty"
    return f"the peer's certificate cannot be verified: {said}"


def _text(error: ssl.SSLError) -> str:
    """Without the brackets before it and the line after it."""
    return str(error).partition(" (_ssl.c:")[0].rpartition("] ")[2]
