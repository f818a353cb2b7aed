"""Answers to requests of very many elements, made and encoded in steps (see ``wire.steps``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import trio

from kce import wire
from kce.broker_stub.handlers.base import (
    Answer,
    Later,
    Services,
    answer_later,
    answering_in_steps,
    answering_later,
    respond_to,
)
from kce.broker_stub.reactor import Request, RequestContext
from kce.wire.long_messages import encoded_in_steps
from kce.wire.long_messages import is_long as is_long_message
from kce.wire.steps import STEP_MASK, Steps, finish
from kce.wire.vocabulary import TopicPartition

R = TypeVar("R", bound=wire.Message)
S = TypeVar("S", bound=wire.Struct)
V = TypeVar("V")

#: elements of a long answer that are made in one step
_ELEMENTS_AT_ONCE: Final = STEP_MASK + 1


class Arrays(NamedTuple):
    """The array of a request, and the one of its response that has an element for each of it."""

    asked: str
    answered: str


def answering_each(
    respond: Callable[[R, RequestContext, Services], wire.Message], arrays: Arrays, inner: Arrays | None = None
) -> Callable[[Request, R, Services], Awaitable[None] | None]:
    """Make a handler from a function whose response has an element for each of the request, and ``inner`` in those.

    A request of many elements is answered, and its response encoded, in turns with other requests.
    """

    def in_steps(message: R, context: RequestContext, services: Services) -> Steps[Answer | Later]:
        return (yield from each_in_steps(message, context, lambda m: respond(m, context, services), arrays, inner))

    long = answering_in_steps(in_steps)

    def handle(request: Request, message: R, services: Services) -> Awaitable[None] | None:
        if is_long(message, arrays, inner):
            return long(request, message, services)
        request.respond(respond(message, request.context, services))
        return None

    return handle


def answering_each_later(
    each: Callable[[R, RequestContext, Services], AsyncGenerator[wire.Struct | None, None]],
    response: Callable[..., wire.Message],
    arrays: Arrays,
) -> Callable[[Request, R, Services], Awaitable[None] | None]:
    """Make a handler from an async generator of the elements of a response; it may pause where it gives None.

    The request is parked while it runs, and the handler is free. A request of many elements occupies its handler, and
    is answered, and its response encoded, in turns with other requests.
    """

    async def respond(message: R, context: RequestContext, services: Services) -> wire.Message:
        found = []
        began = trio.current_time()
        async with aclosing(each(message, context, services)) as elements:
            async for element in elements:
                if element is not None:
                    found.append(element)
                if context.turns is not None:  # few elements may have much in them
                    began = await context.turns.pause(began)
        return response(**{arrays.answered: tuple(found)})

    async def respond_in_turns(request: Request, message: R, services: Services) -> None:
        header = request.context.header
        errors = Counter[int]()
        count, pieces, last = 0, list[bytes](), list[bytes]()
        began = trio.current_time()
        async with aclosing(each(message, request.context, services)) as elements:
            async for element in elements:
                if element is not None:
                    errors.update(wire.error_counts(response(**{arrays.answered: (element,)})))
                    last.append(wire.encode_part(element, api_key=header.api_key, api_version=header.api_version))
                    count += 1
                if len(last) == _ELEMENTS_AT_ONCE:
                    pieces.append(b"".join(last))
                    last.clear()
                began = await request.pause(began)
        request.respond(response(**{arrays.answered: wire.Encoded(count, pieces + last)}), errors)

    later = answering_later(respond)

    def handle(request: Request, message: R, services: Services) -> Awaitable[None] | None:
        return (respond_in_turns if is_long(message, arrays) else later)(request, message, services)

    return handle


def is_long(message: wire.Struct, arrays: Arrays, inner: Arrays | None = None) -> bool:
    """Whether the request has more elements than are answered in one step."""
    elements = getattr(message, arrays.asked)
    if len(elements) > _ELEMENTS_AT_ONCE or inner is None:
        return len(elements) > _ELEMENTS_AT_ONCE
    return sum([len(getattr(element, inner.asked)) for element in elements]) > _ELEMENTS_AT_ONCE


def each_in_steps(
    message: R,
    context: RequestContext,
    respond: Callable[[R], wire.Message],
    arrays: Arrays,
    inner: Arrays | None = None,
) -> Steps[Answer]:
    """The answer to a long message, of those to parts of it."""
    encode = partial(wire.encode_part, api_key=context.header.api_key, api_version=context.header.api_version)
    errors = Counter[int]()
    whole: Any = message
    response: Any = None

    def answers(elements: Iterable[Any]) -> tuple[Any, ...]:
        nonlocal response
        if response is not None and (of_the_whole := wire.own_code(response)) is not None:  # it counts once
            errors[of_the_whole] -= 1
        response = respond(replace(whole, **{arrays.asked: tuple(elements)}))
        errors.update(wire.error_counts(response))
        found: tuple[Any, ...] = getattr(response, arrays.answered)
        return found

    def answer_to(long: Any, inner: Arrays) -> Steps[bytes]:
        """To an element of many."""
        count, pieces = 0, []
        entries = getattr(long, inner.asked)
        for at in range(0, len(entries), _ELEMENTS_AT_ONCE):
            (found,) = answers([replace(long, **{inner.asked: entries[at : at + _ELEMENTS_AT_ONCE]})])
            made = getattr(found, inner.answered)
            count += len(made)
            pieces.append(b"".join([encode(e) for e in made]))
            yield
        return encode(replace(found, **{inner.answered: wire.Encoded(count, pieces)}))

    count, pieces = 0, []
    for elements in _portions(getattr(message, arrays.asked), inner):
        if inner is not None and len(getattr(elements[0], inner.asked)) > _ELEMENTS_AT_ONCE:
            count += 1
            pieces.append((yield from answer_to(elements[0], inner)))
        else:
            made = answers(elements)
            count += len(made)
            pieces.append(b"".join([encode(e) for e in made]))
            yield
    return Answer(replace(response, **{arrays.answered: wire.Encoded(count, pieces)}), errors)


def parts(message: S, arrays: Arrays, inner: Arrays) -> Iterator[S]:
    """The message, or part of one, in parts of which each is not long."""
    whole: Any = message
    for elements in _portions(getattr(message, arrays.asked), inner):
        entries = getattr(elements[0], inner.asked)
        if len(entries) <= _ELEMENTS_AT_ONCE:
            yield replace(whole, **{arrays.asked: tuple(elements)})
            continue
        for at in range(0, len(entries), _ELEMENTS_AT_ONCE):
            some = replace(elements[0], **{inner.asked: entries[at : at + _ELEMENTS_AT_ONCE]})
            yield replace(whole, **{arrays.asked: (some,)})


def encoded_by_topic(
    values: Iterable[tuple[TopicPartition, V]],
    of_partition: Callable[[int, V], wire.Struct],
    of_topic: Callable[[str, wire.Encoded], wire.Struct],
    header: wire.Header,
) -> Steps[wire.Encoded]:
    """The topics of a long answer, grouped as by ``by_topic``, with their partitions."""
    encode = partial(wire.encode_part, api_key=header.api_key, api_version=header.api_version)
    grouped: dict[str, dict[int, V]] = {}
    for i, ((topic, number), value) in enumerate(values, 1):
        grouped.setdefault(topic, {})[number] = value
        if not i & STEP_MASK:
            yield
    topics = []
    for topic, partitions in grouped.items():
        pieces = []
        entries = iter(partitions.items())
        while some := [encode(of_partition(number, value)) for number, value in islice(entries, _ELEMENTS_AT_ONCE)]:
            pieces.append(b"".join(some))
            yield
        topics.append(encode(of_topic(topic, wire.Encoded(len(partitions), pieces))))
    return wire.Encoded(len(topics), topics)


def answer_in_steps(message: wire.Message, context: RequestContext) -> Steps[Answer]:
    """An answer that may be long, encoded in steps. Raises wire.EncodeError."""
    if not is_long_message(message):
        return Answer(message)
    return Answer(*(yield from encoded_in_steps(message, api_version=context.api_version)))


def respond_by_topic(
    request: Request,
    values: Iterable[tuple[TopicPartition, V]],
    count: int,
    of_partition: Callable[[int, V], wire.Struct],
    of_topic: Callable[[str, Any], wire.Struct],
    response: Callable[..., wire.Message],
    services: Services,
) -> None:
    """Answer a request that has waited, with ``count`` values; in turns with other requests if there are many."""
    steps = results_by_topic(values, of_partition, of_topic)
    if count <= _ELEMENTS_AT_ONCE:
        respond_to(request, lambda: response(topics=finish(steps)))
        return

    async def answer() -> Answer:
        return Answer(response(topics=await request.in_turns(steps)))

    answer_later(request, answer, services)


def results_by_topic(
    values: Iterable[tuple[TopicPartition, V]],
    of_partition: Callable[[int, V], wire.Struct],
    of_topic: Callable[[str, Any], wire.Struct],
) -> Steps[tuple[Any, ...]]:
    """The topics of an answer, grouped as by ``by_topic``."""
    grouped: dict[str, dict[int, wire.Struct]] = {}
    for i, ((topic, number), value) in enumerate(values, 1):
        grouped.setdefault(topic, {})[number] = of_partition(number, value)
        if not i & STEP_MASK:
            yield
    topics = []
    for i, (topic, made) in enumerate(grouped.items(), 1):
        topics.append(of_topic(topic, tuple(made.values())))
        if not i & STEP_MASK:
            yield
    return tuple(topics)


def _portions(elements: Iterable[Any], inner: Arrays | None) -> Iterator[list[Any]]:
    """Elements for one step each; one that has too many within is alone."""
    portion: list[Any] = []
    size = 0
    for element in elements:
        more = 1 if inner is None else 1 + len(getattr(element, inner.asked))
        if portion and size + more > _ELEMENTS_AT_ONCE:
            yield portion
            portion, size = [], 0
        portion.append(element)
        size += more
    if portion:
        yield portion
