"""Construction of the observers that `--log-to` or `log_to` names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bnnzoo.errors import BnnzooError, NotFoundError, UsageError
from bnnzoo.observers.base import AbstractObserver
from bnnzoo.observers.broadcast import Broadcast
from bnnzoo.plugins import registry
from bnnzoo.plugins.failures import one_line

LogTo = str | AbstractObserver | Sequence[str | AbstractObserver] | None
"""Value of `log_to`: text such as `jsonl:log.jsonl`, an observer, a list of these, or None."""


def select_observers(log_to: Any) -> Broadcast:
    """Return the observers of a run. Call this function before the run starts, so that errors are found early.

    Args:
        log_to: the user's value, which should be a `LogTo`.

    Raises:
        NotFoundError: if there is no observer with a given name.
        UsageError: if an observer cannot be used, for example because its library is not installed.
    """
    observers: list[tuple[str, AbstractObserver]] = []
    for value in log_to if isinstance(log_to, list | tuple) else [] if log_to is None else [log_to]:
        if not isinstance(value, str | AbstractObserver):
            raise UsageError(
                "[[log_to]]: must be text such as jsonl:log.jsonl, an instance of a subclass of "
                f"bnnzoo.AbstractObserver, or a list of these (got {type(value).__name__})"
            )
        is_text = isinstance(value, str)
        observers.append((value, _make_observer(value)) if is_text else (type(value).__name__, value))
    return Broadcast(observers)


def _make_observer(text: str) -> AbstractObserver:
    """Return the observer for NAME, NAME:TEXT or DISTRIBUTION:NAME:TEXT."""
    name, _, argument = text.partition(":")
    first_word, _, rest = argument.partition(":")
    try:
        if registry.get(registry.OBSERVERS, f"{name}:{first_word}"):
            name, argument = f"{name}:{first_word}", rest
        return registry.load(registry.OBSERVERS, name)(argument)
    except NotFoundError as error:
        raise NotFoundError(f"[[log_to]]: {error}") from None
    except BnnzooError as error:
        raise UsageError(f"[[log_to]]: {text}: {error}") from error
    except Exception as error:  # raised by the class of a plugin
        raise UsageError(f"[[log_to]]: {text}: {one_line(error)}") from error
