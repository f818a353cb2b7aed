"""Errors that are shown in one line, without a traceback."""

from __future__ import annotations


class HarnessError(Exception):
    """Something outside this program is wrong. The text names it, where it is, and what to do."""


class InvalidArgument(HarnessError):
    """A value that cannot be, in whatever state a cluster is."""


class NodeHalted(HarnessError):
    """A node has ended as Kafka ends a broker that cannot go on: at once, and its ZooKeeper session lasts."""


class SettingWarning(UserWarning):
    """A setting of a cluster has no effect."""


def plain_error(error: BaseException, *kinds: type[BaseException]) -> BaseException:
    """The error itself; of a group whose members are all of ``kinds`` (HarnessError if none is given), the first one.

    Trio's nurseries raise groups; callers catch a HarnessError.
    """
    if isinstance(error, BaseExceptionGroup):
        matched, rest = error.split(kinds or (HarnessError,))
        if rest is None and matched is not None:
            first: BaseException = matched
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            return first
    return error
