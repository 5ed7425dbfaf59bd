"""A question that a judge scores (`taskset.task.judges`)."""

from __future__ import annotations

from collections.abc import Iterable

import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class Question(vf.Task[Data]):
    pass


class Questions(vf.Taskset[Question, vf.TasksetConfig]):
    def load(self) -> Iterable[Question]:
        for number in (4, 1):
            yield Question(Data(prompt=f"What is {number} + {number}?", answer="2"), self.config.task)


__all__ = ["Questions"]
