"""Compare the files of a step with their digests."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rllm_record.check.findings import Mismatch, Report
from rllm_record.steps import digests
from rllm_record.steps.errors import RecordError
from rllm_record.steps.files import KINDS, StepFiles
from rllm_record.steps.parquet import read_marks
from rllm_record.steps.version import FIRST_WITH_DIGESTS, VERSION_KEY


def changed_files(files: StepFiles, step: int, report: Report) -> Iterator[Mismatch]:
    """Yield the files of a step that have changed since they were written."""
    outcomes = files.place(digests.LAST, step)
    try:
        marks = read_marks(outcomes)
        contents = {kind: place.read_bytes() for kind in KINDS if (place := files.place(kind, step)).exists()}
    except (OSError, RecordError) as error:
        yield Mismatch("file-unreadable", f"step {step}: {getattr(error, 'message', error)}")
        return
    if digests.KEY not in marks and int(marks[VERSION_KEY]) < FIRST_WITH_DIGESTS:
        report.undigested.append(step)
        return
    expected = _digests_in(marks.get(digests.KEY, b""))
    for kind in KINDS:
        name = f"step {step}: {kind}/{files.place(kind, step).name}"
        if kind not in contents and kind in expected:
            yield Mismatch("missing-file", f"{name} is missing")
        elif kind in contents and kind not in expected:
            yield Mismatch("foreign-file", f"{name} is not one of the files that the run wrote for the step")
        elif kind in contents:
            data, digest = contents[kind], expected[kind]
            same = digests.is_sealed(data, digest) if kind == digests.LAST else digests.digest_of(data) == digest
            if not same:
                yield Mismatch("changed-file", f"{name} has changed since it was written: its digest differs")


def _digests_in(mark: bytes) -> dict[str, str]:
    """Return kind -> digest. Empty if the metadata value is damaged."""
    try:
        found = json.loads(mark)
        return {str(kind): str(digest) for kind, digest in found.items()}
    except (ValueError, AttributeError):
        return {}
