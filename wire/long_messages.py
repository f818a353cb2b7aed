"""Messages of very many elements: encoded, counted, cut and freed in steps (see ``wire.steps``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, TypeVar

from kce.wire.codec import codec_for
from kce.wire.codegen import REFUSALS, Encoded
from kce.wire.error_counts import error_counts_in_steps
from kce.wire.errors import EncodeError
from kce.wire.registry import api
from kce.wire.schema import Message, Struct
from kce.wire.steps import STEP_MASK, Steps

M = TypeVar("M", bound=Message)
S = TypeVar("S", bound=Struct)

#: elements, nested ones included, of a message that needs no steps
SHORT: Final = 1000
#: elements of a part
_ELEMENTS_AT_ONCE: Final = STEP_MASK + 1


def is_long(message: Message) -> bool:
    """Whether it has more than SHORT elements, nested ones included."""
    return _count(message, SHORT) > SHORT


def encoded_in_steps(message: M, *, api_version: int) -> Steps[tuple[M, dict[int, int]]]:
    """The message with its arrays of structures encoded, and its error codes. Raises EncodeError."""
    errors = yield from error_counts_in_steps(message)
    try:
        return (yield from _encoded(message, message.__api_key__, api_version)), errors
    except REFUSALS as e:
        raise EncodeError(f"{type(message).__name__} {api_version}: {e}") from None


def _encoded(struct: S, api_key: int, version: int) -> Steps[S]:
    whole: Any = struct
    arrays: dict[str, Encoded] = {}
    for name, entries in _arrays(struct):
        if not entries or not isinstance(entries[0], Struct):
            continue
        encode = codec_for(type(entries[0]), version, version in api(api_key).flexible).encode
        pieces, part, size = list[Any](), list[Any](), 0
        for entry in entries:
            count = _count(entry, SHORT)
            short = entry if count <= SHORT else (yield from _encoded(entry, api_key, version))
            encode(short, part.append)
            size += 1 + count
            if size >= _ELEMENTS_AT_ONCE:
                pieces += _joined(part)
                part, size = [], 0
                yield
        arrays[name] = Encoded(len(entries), [*pieces, *_joined(part)])
    changed: S = replace(whole, **arrays)
    return changed


def _joined(pieces: list[Any]) -> list[Any]:
    """In one piece, if none is stored."""
    try:
        return [b"".join(pieces)]
    except TypeError:
        return pieces


def parts(message: M, size: int = STEP_MASK + 1) -> Iterator[tuple[M, int]]:
    """The message in parts of some ``size`` elements of one of its arrays, and how deep the part continues the last
    element of the one before: 0 if it begins with a new one. There is one part at least."""
    for part, depth in _parts(message, size):
        yield part, max(depth - 1, 0)


def _parts(struct: Any, size: int) -> Iterator[tuple[Any, int]]:
    """Parts of a structure, and how deep each continues the one before, the structure itself included."""
    arrays = [(name, entries) for name, entries in _arrays(struct) if entries]
    empty = dict.fromkeys([name for name, _ in arrays], ())
    is_first = True
    for name, entries in arrays:
        for elements, depth in _cut(entries, size):
            yield replace(struct, **{**empty, name: elements}), 0 if is_first else depth + 1
            is_first = False
    if is_first:
        yield struct, 0


def _cut(entries: tuple[Any, ...], size: int) -> Iterator[tuple[tuple[Any, ...], int]]:
    part: list[Any] = []
    count = 0
    for entry in entries:
        more = 1 + (_count(entry, size) if isinstance(entry, Struct) else 0)
        if part and count + more > size:
            yield tuple(part), 0
            part, count = [], 0
        if more > size:
            yield from (((some,), depth) for some, depth in _parts(entry, size))
        else:
            part.append(entry)
            count += more
    if part:
        yield tuple(part), 0


def joined(messages: Iterator[tuple[M | None, int]], left_out: int = 0) -> Steps[M | None]:
    """The whole of the answers to `parts`, with the depth of each; None if there is none.

    ``left_out``: levels that answers do not have.
    """
    first: Any = None
    arrays: dict[str, list[Any]] = {}
    for message, depth in messages:
        if message is None:
            return None
        if first is None:
            first = message
            arrays = {name: [] for name, _ in _arrays(message)}
        for name, entries in _arrays(message):
            _extend(arrays[name], entries, depth - left_out)
        yield
    for known in arrays.values():
        for i, entry in enumerate(known):
            known[i] = _closed(entry)
            if not i & STEP_MASK:
                yield
    whole: M = replace(first, **{name: tuple(known) for name, known in arrays.items()})
    return whole


def distinct(message: M, array: str, key: str) -> Steps[M]:
    """The message with the first of the elements with the same key."""
    found: dict[Any, Any] = {}
    for i, entry in enumerate(getattr(message, array), 1):
        found.setdefault(getattr(entry, key), entry)
        if not i & STEP_MASK:
            yield
    whole: Any = message
    changed: M = replace(whole, **{array: tuple(found.values())})
    return changed


class _Open:
    """A structure that continues in the next part."""

    def __init__(self, struct: Struct) -> None:
        self.struct: Any = struct
        self.arrays: dict[str, list[Any]] = {name: list(entries) for name, entries in _arrays(struct)}


def _extend(known: list[Any], entries: tuple[Any, ...], depth: int) -> None:
    if depth > 0 and known and entries:
        last = known[-1]
        if isinstance(last, Struct):
            last = known[-1] = _Open(last)
        if isinstance(last, _Open):
            for name, more in _arrays(entries[0]):
                _extend(last.arrays[name], more, depth - 1)
            return
    known += entries


def _closed(entry: Any) -> Any:
    if not isinstance(entry, _Open):
        return entry
    return replace(entry.struct, **{name: tuple(map(_closed, known)) for name, known in entry.arrays.items()})


def freed(message: M) -> Steps[None]:
    """Free the elements of a message, nested ones too, to which the caller has no other reference."""
    lists = [list(entries) for _, entries in _arrays(message)]
    del message
    while lists:
        part = lists[-1][-STEP_MASK:]
        del lists[-1][-STEP_MASK:]
        if not part:
            lists.pop()
            continue
        if isinstance(part[0], Struct):
            lists += [list(entries) for entry in part for _, entries in _arrays(entry) if len(entries) > STEP_MASK]
        yield


def _arrays(struct: Struct) -> list[tuple[str, tuple[Any, ...]]]:
    """The arrays of a structure, but those that are null or encoded."""
    found = [(name, getattr(struct, name)) for name in _names_of_arrays(type(struct))]
    return [(name, entries) for name, entries in found if type(entries) is tuple]


_arrays_of: Final[dict[type[Struct], tuple[str, ...]]] = {}


def _names_of_arrays(cls: type[Struct]) -> tuple[str, ...]:
    found = _arrays_of.get(cls)
    if found is None:
        found = _arrays_of[cls] = tuple(f.name for f in cls.__fields__ if f.array)
    return found


def _count(struct: Struct, enough: int) -> int:
    """The elements in it; it stops at more than ``enough``."""
    count = 0
    for _, entries in _arrays(struct):
        count += len(entries)
        if count > enough:
            return count
        if entries and isinstance(entries[0], Struct) and _names_of_arrays(type(entries[0])):
            for entry in entries:
                count += _count(entry, enough)
                if count > enough:
                    return count
    return count
