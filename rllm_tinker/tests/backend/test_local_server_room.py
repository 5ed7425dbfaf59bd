"""How much a run asks of the server that it starts: as much as any, and more where it samples from more versions."""

from __future__ import annotations

import pytest

from rllm_tinker.backend import CACHE_GIB, MERGED, SNAPSHOTS, room_for
from rllm_tinker_server.command import serve


def _parse_options(versions: int) -> dict[str, float]:
    words = room_for(versions)
    return {name: float(value) for name, value in zip(words[::2], words[1::2], strict=True)}


def test_without_batches_ahead_the_server_default_is_used() -> None:
    defaults = {parameter.opts[0]: parameter.default for parameter in serve.params}
    assert _parse_options(1) == {name: defaults[name] for name in ("--max-merged", "--max-snapshots", "--kv-cache-gib")}
    assert tuple(_parse_options(1).values()) == (MERGED, SNAPSHOTS, CACHE_GIB)


@pytest.mark.parametrize("versions", [3, 5, 40])
def test_all_versions_sample_at_once_with_constant_cache(versions: int) -> None:
    asked = _parse_options(versions)
    assert asked["--max-merged"] == versions
    assert asked["--max-snapshots"] > versions
    assert asked["--max-merged"] * asked["--kv-cache-gib"] == pytest.approx(MERGED * CACHE_GIB)
