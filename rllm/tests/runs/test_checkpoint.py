"""Checkpoints survive full disks, damage, and processes killed at any moment."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from expecting import check_values, expect_error

from rllm.runs.checkpoint import CheckpointStore, find_damage
from rllm_core.errors import CheckpointError, RolloutError

WEIGHTS = bytes(range(256)) * 40


async def _write_backend(directory: Path) -> None:
    (directory / "weights.bin").write_bytes(WEIGHTS)
    (directory / "nested").mkdir()
    (directory / "nested" / "optimizer.bin").write_bytes(WEIGHTS[::-1])


def _save(store: CheckpointStore, step: int) -> Path:
    return asyncio.run(store.save(step, {"finished_steps": step}, _write_backend))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def store(directory: Path) -> CheckpointStore:
    return CheckpointStore(directory, keep=3)


@pytest.fixture
def saved(store: CheckpointStore, directory: Path) -> Path:
    """The directory with checkpoints of steps 1 and 2."""
    _save(store, 1)
    _save(store, 2)
    return directory


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_checkpoint_comes_back_as_it_was_saved(store: CheckpointStore, directory: Path) -> None:
    state = {"finished_steps": 7, "nested": {"list": [1, 2.5, None, "ü"]}}
    path = asyncio.run(store.save(7, state, _write_backend))
    found = store.latest_usable(pytest.fail)
    assert found is not None
    assert (found.directory, found.state) == (path, state)
    assert (found.backend_directory / "weights.bin").read_bytes() == WEIGHTS
    assert _names(directory) == ["latest", "step_000007"]


def test_a_new_run_has_none(store: CheckpointStore, directory: Path) -> None:
    assert store.latest_usable(pytest.fail) is None
    directory.mkdir()
    assert store.latest_usable(pytest.fail) is None


def test_newest_checkpoint_is_used_and_linked(store: CheckpointStore, saved: Path) -> None:
    found = store.latest_usable(pytest.fail)
    assert found is not None
    assert found.state == {"finished_steps": 2}
    assert (saved / "latest").resolve() == found.directory


def test_newest_checkpoint_has_the_highest_step(directory: Path) -> None:
    store = CheckpointStore(directory, keep=5)
    for step in (999_999, 1_000_000):
        _save(store, step)
    found = store.latest_usable(pytest.fail)
    assert found is not None
    assert found.state == {"finished_steps": 1_000_000}


def test_only_the_newest_checkpoints_are_kept(store: CheckpointStore, directory: Path) -> None:
    for step in range(6):
        _save(store, step)
    assert _names(directory) == ["latest", "step_000003", "step_000004", "step_000005"]


def test_directories_with_other_names_are_kept(store: CheckpointStore, saved: Path) -> None:
    shutil.copytree(saved / "step_000001", saved / "step_000001_backup")
    _save(store, 3)
    found = store.latest_usable(pytest.fail)
    assert found is not None
    assert found.state == {"finished_steps": 3}
    assert (saved / "step_000001_backup").is_dir()


def test_saving_a_step_again_replaces_it(store: CheckpointStore, saved: Path) -> None:
    (saved / "step_000002" / "backend" / "weights.bin").write_bytes(b"damaged")
    _save(store, 2)
    assert find_damage(saved / "step_000002") is None
    assert _names(saved) == ["latest", "step_000001", "step_000002"]


def _flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped byte": (lambda c: _flip_a_byte(c / "backend" / "weights.bin"), "backend/weights.bin has changed"),
    "a truncated file": (
        lambda c: (c / "backend" / "nested" / "optimizer.bin").write_bytes(b""),
        "backend/nested/optimizer.bin has changed",
    ),
    "a missing file": (lambda c: (c / "backend" / "weights.bin").unlink(), "backend/weights.bin is missing"),
    "a missing directory": (lambda c: shutil.rmtree(c / "backend"), "is missing"),
    "changed state": (lambda c: (c / "state.json").write_text("{}"), "state.json has changed"),
    "no state": (lambda c: (c / "state.json").unlink(), "state.json is missing"),
    "no manifest": (lambda c: (c / "manifest.json").unlink(), "no manifest"),
    "a garbage manifest": (lambda c: (c / "manifest.json").write_bytes(b"\xff\x00garbage"), "unreadable manifest"),
    "an empty manifest": (lambda c: (c / "manifest.json").write_text(""), "unreadable manifest"),
    "a manifest of another shape": (lambda c: (c / "manifest.json").write_text("[1]"), "unreadable manifest"),
    "a manifest without files": (
        lambda c: (c / "manifest.json").write_text('{"format_version": 3}'),
        "unreadable manifest",
    ),
    "a manifest that lists nothing": (
        lambda c: (c / "manifest.json").write_text('{"format_version": 3, "sha256": {}}'),
        "unreadable manifest",
    ),
    "another format version": (
        lambda c: (c / "manifest.json").write_text('{"format_version": 1, "files": []}'),
        "format version 1, this rllm-core reads 3",
    ),
    "nothing at all": (lambda c: [shutil.rmtree(c), c.mkdir()], "no manifest"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_and_that_is_said(
    store: CheckpointStore, saved: Path, damage: Callable[[Path], object], reason: str
) -> None:
    damage(saved / "step_000002")
    warnings: list[str] = []
    found = store.latest_usable(warnings.append)
    assert found is not None
    assert found.state == {"finished_steps": 1}
    (warning,) = warnings
    assert f"checkpoint {saved / 'step_000002'} is damaged" in warning
    assert reason in warning
    assert warning.endswith("; continuing from step_000001")


def test_every_byte_of_the_manifest_matters_or_does_no_harm(store: CheckpointStore, saved: Path) -> None:
    manifest = saved / "step_000002" / "manifest.json"
    whole = manifest.read_bytes()
    for position in range(len(whole)):
        for bit in (0, 1, 5):
            content = bytearray(whole)
            content[position] ^= 1 << bit
            manifest.write_bytes(content)
            found = store.latest_usable(lambda warning: None)
            assert found is not None, position
            assert found.state in ({"finished_steps": 1}, {"finished_steps": 2})


def test_when_all_are_damaged_it_is_an_error_that_tells_what_is_wrong_with_each(
    store: CheckpointStore, saved: Path
) -> None:
    (saved / "step_000001" / "manifest.json").unlink()
    _flip_a_byte(saved / "step_000002" / "state.json")
    warnings: list[str] = []
    with expect_error(
        CheckpointError, "no-checkpoint", saved, "step_000002", "state.json", "step_000001", "--overwrite"
    ):
        store.latest_usable(warnings.append)
    assert warnings == []  # there is none to continue from


def test_a_run_that_goes_on_before_damaged_checkpoints_keeps_what_it_saves(directory: Path) -> None:
    store = CheckpointStore(directory, keep=2)
    for step in (10, 20, 30):
        _save(CheckpointStore(directory, keep=3), step)
    for step in (20, 30):
        (directory / f"step_0000{step}" / "manifest.json").unlink()
    _save(store, 12)
    found = store.latest_usable(lambda warning: None)
    assert found is not None
    assert found.state == {"finished_steps": 12}
    assert (directory / "step_000010").exists()
    assert (directory / "latest").resolve() == directory / "step_000012"


async def _fail(directory: Path) -> None:
    (directory / "half.bin").write_bytes(b"half")
    raise RuntimeError("disk full, says the library")


def test_a_failed_save_leaves_the_older_ones_and_nothing_half_written(store: CheckpointStore, saved: Path) -> None:
    with expect_error(CheckpointError, "not-writable", "3", saved, "step_000002", "--resume"):
        asyncio.run(store.save(3, {}, _fail))
    assert _names(saved) == ["latest", "step_000001", "step_000002"]


def test_a_failed_save_of_a_step_that_exists_leaves_that_one_too(store: CheckpointStore, saved: Path) -> None:
    with pytest.raises(CheckpointError):
        asyncio.run(store.save(2, {}, _fail))
    assert find_damage(saved / "step_000002") is None


def test_what_is_intact_is_checked_and_not_assumed(store: CheckpointStore, saved: Path) -> None:
    _flip_a_byte(saved / "step_000002" / "state.json")
    with pytest.raises(CheckpointError) as caught:
        asyncio.run(store.save(3, {}, _fail))
    assert caught.value.hint.startswith("step_000001 is intact")


@pytest.mark.parametrize("state", [{"stages": {1, 2}}, {"stages": {(1, 2): 3}}, {"path": Path("x")}], ids=str)
def test_a_state_that_is_no_json_data_is_an_error_before_anything_is_written(
    store: CheckpointStore, saved: Path, state: dict[str, object]
) -> None:
    async def never(directory: Path) -> None:
        raise AssertionError("the backend must not be asked to write")

    (saved / ".step_000009.1.tmp").mkdir()  # a leftover, which any write would remove
    before = _names(saved)
    with expect_error(CheckpointError, "not-json", "3", "state_dict") as caught:
        asyncio.run(store.save(3, state, never))
    assert isinstance(caught.value.__cause__, TypeError)
    assert _names(saved) == before


def test_state_that_contains_itself_is_rejected(store: CheckpointStore, directory: Path) -> None:
    state: dict[str, object] = {}
    state["itself"] = state
    with expect_error(CheckpointError, "not-json", "1"):
        asyncio.run(store.save(1, state, _write_backend))
    assert not directory.exists()


def test_the_link_can_be_pointed_at_an_older_checkpoint(store: CheckpointStore, saved: Path) -> None:
    assert (saved / "latest").readlink() == Path("step_000002")
    store.point_latest_at(saved / "step_000001")
    assert (saved / "latest").readlink() == Path("step_000001")
    assert _names(saved) == ["latest", "step_000001", "step_000002"]
    (saved / "latest").unlink()
    store.point_latest_at(saved / "step_000002")
    assert (saved / "latest").readlink() == Path("step_000002")


def test_a_first_save_that_fails_says_that_there_is_nothing_earlier(store: CheckpointStore, directory: Path) -> None:
    with expect_error(CheckpointError, "not-writable"):
        asyncio.run(store.save(1, {}, _fail))
    assert _names(directory) == []


def test_an_error_on_purpose_of_the_backend_is_passed_on(store: CheckpointStore, saved: Path) -> None:
    async def refuse(directory: Path) -> None:
        raise RolloutError("made-up", "The engine has stopped.")

    with expect_error(RolloutError, "made-up"):
        asyncio.run(store.save(3, {}, refuse))
    assert _names(saved) == ["latest", "step_000001", "step_000002"]


def test_a_target_that_cannot_be_a_directory_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = CheckpointStore(tmp_path / "file" / "checkpoints", keep=2)
    with expect_error(CheckpointError, "not-writable", "1", "file/checkpoints"):
        _save(store, 1)
    assert (tmp_path / "file").read_text() == "in the way"


def test_leftovers_of_killed_processes_are_removed_by_the_next_save(store: CheckpointStore, saved: Path) -> None:
    (saved / ".step_000003.12345.tmp" / "backend").mkdir(parents=True)
    (saved / ".step_000003.12345.old.tmp").mkdir()
    (saved / ".latest.12345.tmp").symlink_to("step_000001")
    _save(store, 3)
    assert _names(saved) == ["latest", "step_000001", "step_000002", "step_000003"]


SAVES = """
import asyncio, itertools, resource, sys
from pathlib import Path
from rllm.runs.checkpoint import CheckpointStore
from rllm_core.errors import CheckpointError

directory, first, largest_file = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store = CheckpointStore(directory, keep=2)

async def write(backend):
    for index in range(3):
        (backend / f"part_{index}.bin").write_bytes(bytes([index]) * 50_000)

if largest_file:
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing past the limit is then an error, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
for step in itertools.count(first):
    try:
        asyncio.run(store.save(step, {"finished_steps": step}, write))
    except CheckpointError as error:
        print(error.code, error.message)
        print(error.hint)
        break
    print(step, flush=True)
"""


def test_a_disk_that_takes_no_more_is_an_error_and_leaves_the_older_ones(store: CheckpointStore, saved: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAVES, str(saved), "3", "20000"], capture_output=True, text=True, timeout=200
    )
    message, hint = done.stdout.splitlines()
    assert message.startswith("not-writable ")
    check_values(message, "step 3", saved, "File too large")
    check_values(hint, "step_000002", "--resume")
    assert _names(saved) == ["latest", "step_000001", "step_000002"]
    found = store.latest_usable(pytest.fail)
    assert found is not None
    assert found.state == {"finished_steps": 2}


@pytest.mark.long
def test_kill_while_saving_leaves_a_usable_checkpoint(directory: Path) -> None:
    moments = random.Random(0)
    latest = 0
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVES, str(directory), str(latest + 1), "0"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()  # one is finished
        time.sleep(moments.random() * 0.05)
        process.kill()
        told = [latest + 1, *(int(line) for line in process.stdout if line.endswith("\n"))]
        process.wait()
        process.stdout.close()
        found = CheckpointStore(directory, keep=2).latest_usable(pytest.fail)
        assert found is not None
        assert found.state["finished_steps"] in (told[-1], told[-1] + 1)
        assert find_damage((directory / "latest").resolve(strict=True)) is None
        latest = found.state["finished_steps"]
    assert latest >= 12
    _save(CheckpointStore(directory, keep=2), latest + 1)
    assert _names(directory) == ["latest", f"step_{latest:06d}", f"step_{latest + 1:06d}"]


def test_the_manifest_lists_every_file_but_itself(store: CheckpointStore, saved: Path) -> None:
    manifest = json.loads((saved / "step_000002" / "manifest.json").read_text())
    assert manifest["format_version"] == 3
    assert sorted(manifest["sha256"]) == ["backend/nested/optimizer.bin", "backend/weights.bin", "state.json"]
