"""What a broker answers to ApiVersions, byte for byte, in every version and beyond."""

from __future__ import annotations

import trio

from kce import wire
from tests.clusters import dial

#: name and version of a client's software, of which the second pair is not valid
_SOFTWARE = (("kce", "1.0"), ("-", "1.0"))
_UNKNOWN_VERSIONS = (5, 99, 32767)
_LIMIT_S = 30


async def api_versions(address: str) -> dict[str, bytes]:
    """The frames by what was asked, each on a connection of its own."""
    first, last = wire.ApiVersionsRequest.__versions__
    asked = {}
    for version in range(first, last + 1):
        for name, number in _SOFTWARE if version >= 3 else _SOFTWARE[:1]:
            message = wire.ApiVersionsRequest(client_software_name=name, client_software_version=number)
            asked[f"version {version}, software {name}"] = wire.encode_request(
                message, api_version=version, correlation_id=7, client_id="c"
            )
    newest = asked[f"version {last}, software {_SOFTWARE[0][0]}"]
    for version in _UNKNOWN_VERSIONS:  # with a header and a body that the broker cannot know
        asked[f"version {version}"] = newest[:2] + version.to_bytes(2, "big") + newest[4:]
    return {what: await _answer(address, request) for what, request in asked.items()}


async def _answer(address: str, request: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    link = await dial(host, int(port))
    try:
        with trio.fail_after(_LIMIT_S):
            await link.send_frame(request)
            return await link.receive_frame()
    finally:
        await link.aclose()
