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
from typing import Any

import pytest
from expecting import check_values, expect_error

from rllm.runs.checkpoint import Checkpoint, CheckpointStore, find_damage
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


def latest(store: CheckpointStore, warn: Callable[[str], object] = pytest.fail) -> Checkpoint:
    found = store.latest_usable(warn)
    assert found is not None
    return found


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_checkpoint_is_read_unchanged(store: CheckpointStore, directory: Path) -> None:
    state = {"finished_steps": 7, "nested": {"list": [1, 2.5, None, "ü"]}}
    path = asyncio.run(store.save(7, state, _write_backend))
    found = latest(store)
    assert (found.directory, found.state) == (path, state)
    assert (found.backend_directory / "weights.bin").read_bytes() == WEIGHTS
    assert _names(directory) == ["latest", "step_000007"]
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["format_version"] == 3
    assert sorted(manifest["sha256"]) == ["backend/nested/optimizer.bin", "backend/weights.bin", "state.json"]


def test_a_new_run_has_none(store: CheckpointStore, directory: Path) -> None:
    assert store.latest_usable(pytest.fail) is None
    directory.mkdir()
    assert store.latest_usable(pytest.fail) is None


def test_newest_checkpoint_is_used_and_linked(store: CheckpointStore, saved: Path) -> None:
    found = latest(store)
    assert found.state == {"finished_steps": 2}
    assert (saved / "latest").resolve() == found.directory
    store.point_latest_at(saved / "step_000001")
    assert (saved / "latest").readlink() == Path("step_000001")
    assert _names(saved) == ["latest", "step_000001", "step_000002"]
    (saved / "latest").unlink()
    store.point_latest_at(saved / "step_000002")
    assert (saved / "latest").readlink() == Path("step_000002")


def test_newest_checkpoint_has_the_highest_step(directory: Path) -> None:
    store = CheckpointStore(directory, keep=5)
    for step in (999_999, 1_000_000):
        _save(store, step)
    assert latest(store).state == {"finished_steps": 1_000_000}


def test_only_the_newest_checkpoints_are_kept(store: CheckpointStore, saved: Path) -> None:
    """Leftovers of killed processes are removed, and directories with other names stay."""
    (saved / ".step_000003.12345.tmp" / "backend").mkdir(parents=True)
    (saved / ".step_000003.12345.old.tmp").mkdir()
    (saved / ".latest.12345.tmp").symlink_to("step_000001")
    shutil.copytree(saved / "step_000001", saved / "step_000001_backup")
    for step in range(3, 6):
        _save(store, step)
    assert _names(saved) == ["latest", "step_000001_backup", "step_000003", "step_000004", "step_000005"]
    assert latest(store).state == {"finished_steps": 5}


def test_saving_a_step_again_replaces_it(store: CheckpointStore, saved: Path) -> None:
    shutil.rmtree(saved / "step_000002")
    (saved / "step_000002").write_bytes(b"damaged")
    _save(store, 2)
    assert find_damage(saved / "step_000002") is None
    assert _names(saved) == ["latest", "step_000001", "step_000002"]


def _flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _replace(name: str, content: str | bytes) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda checkpoint: (checkpoint / name).write_bytes(data)


NO_HASHES = '{"format_version": 3, "sha256": {}}'
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped byte": (lambda c: _flip_a_byte(c / "backend" / "weights.bin"), "backend/weights.bin has changed"),
    "a truncated file": (_replace("backend/nested/optimizer.bin", ""), "backend/nested/optimizer.bin has changed"),
    "a missing file": (lambda c: (c / "backend" / "weights.bin").unlink(), "backend/weights.bin is missing"),
    "a missing directory": (lambda c: shutil.rmtree(c / "backend"), "is missing"),
    "changed state": (_replace("state.json", "{}"), "state.json has changed"),
    "no state": (lambda c: (c / "state.json").unlink(), "state.json is missing"),
    "no manifest": (lambda c: (c / "manifest.json").unlink(), "no manifest"),
    "a garbage manifest": (_replace("manifest.json", b"\xff\x00garbage"), "unreadable manifest"),
    "a manifest of another shape": (_replace("manifest.json", "[1]"), "unreadable manifest"),
    "a manifest without files": (_replace("manifest.json", '{"format_version": 3}'), "unreadable manifest"),
    "a manifest that lists nothing": (_replace("manifest.json", NO_HASHES), "unreadable manifest"),
    "another format version": (_replace("manifest.json", '{"format_version": 1}'), "format version 1, this rllm-core"),
    "nothing at all": (lambda c: [shutil.rmtree(c), c.mkdir()], "no manifest"),
    "a file": (lambda c: [shutil.rmtree(c), c.write_bytes(b"")], "it is a file, not a directory"),
    "a link to nothing": (lambda c: [shutil.rmtree(c), c.symlink_to("gone")], "no manifest"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_checkpoints_are_skipped(store: CheckpointStore, saved: Path, damage: Any, reason: str) -> None:
    damage(saved / "step_000002")
    warnings: list[str] = []
    assert latest(store, warnings.append).state == {"finished_steps": 1}
    (warning,) = warnings
    assert f"checkpoint {saved / 'step_000002'} is damaged" in warning
    assert reason in warning
    assert "so the run continues from step_000001. To use it, " in warning


def test_every_manifest_byte_matters_or_is_harmless(store: CheckpointStore, saved: Path) -> None:
    manifest = saved / "step_000002" / "manifest.json"
    whole = manifest.read_bytes()
    for position in range(len(whole)):
        content = bytearray(whole)
        content[position] ^= 1 << position % 7
        manifest.write_bytes(content)
        assert latest(store, lambda warning: None).state in ({"finished_steps": 1}, {"finished_steps": 2}), position


def test_only_damaged_checkpoints_are_an_error_for_each(store: CheckpointStore, saved: Path) -> None:
    (saved / "step_000001" / "manifest.json").unlink()
    _flip_a_byte(saved / "step_000002" / "state.json")
    values = (saved, "step_000002", "state.json", "step_000001", "--overwrite")
    with expect_error(CheckpointError, "no-checkpoint", *values):
        store.latest_usable(pytest.fail)  # without a warning, because no checkpoint remains


def test_a_checkpoint_before_damaged_ones_is_kept(directory: Path) -> None:
    store = CheckpointStore(directory, keep=2)
    for step in (10, 20, 30):
        _save(CheckpointStore(directory, keep=3), step)
    for step in (20, 30):
        (directory / f"step_0000{step}" / "manifest.json").unlink()
    _save(store, 12)
    assert latest(store, lambda warning: None).state == {"finished_steps": 12}
    assert (directory / "step_000010").exists()
    assert (directory / "latest").resolve() == directory / "step_000012"


async def _fail(directory: Path) -> None:
    (directory / "half.bin").write_bytes(b"half")
    raise RuntimeError("disk full, says the library")


def test_a_failed_save_leaves_the_older_ones(store: CheckpointStore, saved: Path) -> None:
    with expect_error(CheckpointError, "not-writable", "3", saved, "step_000002", "--resume"):
        asyncio.run(store.save(3, {}, _fail))
    assert _names(saved) == ["latest", "step_000001", "step_000002"]
    with pytest.raises(CheckpointError):
        asyncio.run(store.save(2, {}, _fail))
    assert find_damage(saved / "step_000002") is None
    _flip_a_byte(saved / "step_000002" / "state.json")
    with pytest.raises(CheckpointError) as caught:
        asyncio.run(store.save(3, {}, _fail))
    assert caught.value.hint.startswith("step_000001 is intact")


ENDLESS: dict[str, object] = {}
ENDLESS["itself"] = ENDLESS


@pytest.mark.parametrize("state", [{"stages": {1, 2}}, {"stages": {(1, 2): 3}}, {"path": Path("x")}, ENDLESS], ids=str)
def test_a_state_without_json_writes_nothing(store: CheckpointStore, saved: Path, state: dict[str, object]) -> None:
    async def never(directory: Path) -> None:
        raise AssertionError("the backend must not be asked to write")

    (saved / ".step_000009.1.tmp").mkdir()  # a leftover, which any write would remove
    before = _names(saved)
    with expect_error(CheckpointError, "not-json", "3", "state_dict"):
        asyncio.run(store.save(3, state, never))
    assert _names(saved) == before


def test_a_failed_first_save_leaves_nothing(store: CheckpointStore, directory: Path) -> None:
    with expect_error(CheckpointError, "not-writable"):
        asyncio.run(store.save(1, {}, _fail))
    assert _names(directory) == []


def test_error_of_the_backend_is_raised(store: CheckpointStore, saved: Path) -> None:
    async def refuse(directory: Path) -> None:
        raise RolloutError("made-up", "The engine has stopped.")

    with expect_error(RolloutError, "made-up"):
        asyncio.run(store.save(3, {}, refuse))
    assert _names(saved) == ["latest", "step_000001", "step_000002"]


def test_target_that_is_no_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = CheckpointStore(tmp_path / "file" / "checkpoints", keep=2)
    with expect_error(CheckpointError, "not-writable", "1", "file/checkpoints"):
        _save(store, 1)
    assert (tmp_path / "file").read_text() == "in the way"


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


def test_full_disk_leaves_older_checkpoints(store: CheckpointStore, saved: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAVES, str(saved), "3", "20000"], capture_output=True, text=True, timeout=200
    )
    message, hint = done.stdout.splitlines()
    assert message.startswith("not-writable ")
    check_values(message, "3 steps", saved, "File too large")
    check_values(hint, "step_000002", "--resume")
    assert _names(saved) == ["latest", "step_000001", "step_000002"]
    assert latest(store).state == {"finished_steps": 2}


@pytest.mark.smoke
def test_kill_while_saving_leaves_a_usable_checkpoint(directory: Path) -> None:
    moments = random.Random(0)
    step = 0
    for _ in range(6):
        command = [sys.executable, "-c", SAVES, str(directory), str(step + 1), "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()  # one is finished
            time.sleep(moments.random() * 0.05)
            process.kill()
            told = [step + 1, *(int(line) for line in process.stdout if line.endswith("\n"))]
        step = latest(CheckpointStore(directory, keep=2)).state["finished_steps"]
        assert step in (told[-1], told[-1] + 1)
        assert find_damage((directory / "latest").resolve(strict=True)) is None
    _save(CheckpointStore(directory, keep=2), step + 1)
    assert _names(directory) == ["latest", f"step_{step:06d}", f"step_{step + 1:06d}"]
