"""Checks of measured times that are made again where a host disturbed them."""

from functools import partial, wraps

ATTEMPTS = 8


def attempted(check):
    """Run a check until it holds, a few times at most.

    A host whose neighbours take the processor for a second spoils an attempt; an estimator that
    is wrong spoils all of them.
    """
    for left in reversed(range(ATTEMPTS)):
        try:
            check()
        except AssertionError:
            if not left:
                raise
        else:
            break


def in_attempts(test):
    """Let a test be ``attempted`` as a whole."""

    @wraps(test)
    def tried(*args, **kwargs):
        attempted(partial(test, *args, **kwargs))

    return tried
