"""A log at Weights & Biases."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from bnnzoo.observers.base import AbstractObserver, ChunkReport, Report, RunEnd, RunFailure, RunStart
from bnnzoo.observers.library import require_library


class Wandb(AbstractObserver):
    """Observer that logs to the Weights & Biases project `PROJECT` or `ENTITY/PROJECT`; the file names the run."""

    def __init__(self, argument: str):
        self._entity, _, self._project = argument.rpartition("/")
        self._library = require_library("wandb", "wandb")
        self._library.login()  # asks for a missing key, or raises an error; nothing is needed with WANDB_MODE=offline
        self._run: Any = None

    def observe(self, report: Report) -> None:
        if isinstance(report, RunStart):
            name = Path(report.file).stem
            self._run = self._library.init(
                entity=self._entity or None,
                project=self._project or "bnnzoo",
                name=name,
                group=name,  # a resumed run is another run of the same group
                config=dataclasses.asdict(report),
                reinit="create_new",  # other runs of the same program continue
            )
        elif isinstance(report, ChunkReport):
            self._run.log(report.scalars(), step=report.steps)
        elif isinstance(report, RunEnd):
            self._run.summary.update({"verdict": report.verdict, **report.metrics})
            self._run.finish()
        elif isinstance(report, RunFailure):
            self._run.summary.update({report.reason: report.message})
            self._run.finish(exit_code=1)
