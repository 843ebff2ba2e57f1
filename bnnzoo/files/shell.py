"""Commands and calls that the user copies from a message into a shell or into Python."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from bnnzoo.finding import spelling


def quoted(path: str | Path | None) -> str:
    """Quote a file name for a shell. The name can contain spaces, and it can start with a dash."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def resume_call(run: str | Path | None, *settings: str) -> str:
    """Return the call that resumes a run, as a shell command or in Python, in the notation that `spelling` returns.

    Args:
        run: the NetCDF file of the run.
        settings: placeholders of further settings, from `bnnzoo.finding.setting`.
    """
    if spelling() == "keywords":
        return f"bnnzoo.resume({', '.join([repr(str(run)), *settings])})"
    return " ".join(["bnnzoo resume", quoted(run), *settings])


def sample_call(model: str, sampler: str, *settings: str) -> str:
    """Return the call that makes a run, as a shell command or in Python, in the notation that `spelling` returns.

    Args:
        model: the name of the model.
        sampler: the name of the sampler.
        settings: placeholders of further settings, from `bnnzoo.finding.setting`.
    """
    if spelling() == "keywords":
        return f"bnnzoo.sample({', '.join([json.dumps(model), json.dumps(sampler), *settings])})"
    return " ".join(["bnnzoo sample", model, sampler, *settings])
