"""A log for TensorBoard, written by tensorboardX."""

from __future__ import annotations

import json
import os
from typing import Any

from bnnzoo.errors import UsageError
from bnnzoo.files.user_paths import checked_path
from bnnzoo.observers.base import AbstractObserver, ChunkReport, Report, RunEnd, RunFailure, RunStart
from bnnzoo.observers.library import require_library


class Tensorboard(AbstractObserver):
    """Observer that writes event files: a curve for each number of the chunk reports; recipe and verdict as texts."""

    def __init__(self, argument: str):
        if not argument:
            raise UsageError("requires a folder, such as tensorboard:logs")
        self._folder = checked_path(os.path.expanduser(argument), folder=True)
        if self._folder.exists() and not self._folder.is_dir():
            raise UsageError("is not a folder; use another name")
        self._library = require_library("tensorboardX", "tensorboard")
        self._writer: Any = None
        self._steps = 0

    def observe(self, report: Report) -> None:
        if isinstance(report, RunStart):
            # A resumed run repeats the steps after its checkpoint, so TensorBoard hides their first values.
            purge_step = report.steps + 1 if report.steps else None
            self._writer = self._library.SummaryWriter(str(self._folder), purge_step=purge_step)
            self._steps = report.steps
            self._writer.add_text("recipe", f"```\n{json.dumps(report.recipe, indent=2, default=str)}\n```", 0)
        elif isinstance(report, ChunkReport):
            self._steps = report.steps
            for name, value in report.scalars().items():
                self._writer.add_scalar(name, value, self._steps)
        elif isinstance(report, RunEnd):
            self._writer.add_text("verdict", report.verdict, self._steps)
        elif isinstance(report, RunFailure):
            self._writer.add_text(report.reason, report.message, self._steps)
        self._writer.flush()
        if isinstance(report, RunEnd | RunFailure):
            self._writer.close()
