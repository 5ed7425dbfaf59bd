"""TLS contexts that are made ahead: the same as others, once each, and only for the same call."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from rllm_gateway.running.fork_server import COPIES, warm_up_with_contexts

ORIGINAL = ssl.create_default_context


@pytest.fixture
def certificates(monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of certificates. What the test puts in place of the function is taken away behind it."""
    monkeypatch.setattr(ssl, "create_default_context", ORIGINAL)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    return pytest.importorskip("certifi").where()  # type: ignore[no-any-return]


@pytest.fixture
def read(certificates: str, monkeypatch: pytest.MonkeyPatch) -> list[ssl.SSLContext]:
    """The contexts that have read certificates since the warm-up."""
    warm_up_with_contexts(lambda: _made(certificates))
    contexts = list[ssl.SSLContext]()
    whole = ssl.SSLContext.load_verify_locations

    def noted(self: ssl.SSLContext, *given: object, **named: object) -> None:
        contexts.append(self)
        whole(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", noted)
    return contexts


def _made(file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=file)


def test_the_first_calls_get_what_was_made_ahead_and_later_ones_make_their_own(
    certificates: str, read: list[ssl.SSLContext]
) -> None:
    made = [_made(certificates) for _ in range(COPIES + 1)]
    assert read == made[-1:]
    assert len(set(map(id, made))) == COPIES + 1


def test_a_context_that_was_made_ahead_trusts_the_same(certificates: str, read: list[ssl.SSLContext]) -> None:
    ready, fresh = _made(certificates), ORIGINAL(cafile=certificates)
    assert ready.get_ca_certs() == fresh.get_ca_certs() != []
    assert (ready.verify_mode, ready.check_hostname, ready.options) == (
        fresh.verify_mode,
        fresh.check_hostname,
        fresh.options,
    )


def test_other_arguments_make_another_context(certificates: str, read: list[ssl.SSLContext], tmp_path: Path) -> None:
    copy = tmp_path / "copy.pem"
    copy.write_bytes(Path(certificates).read_bytes())
    made = _made(str(copy))
    assert read == [made]


def test_another_environment_makes_another_context(
    certificates: str, read: list[ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificates)
    made = _made(certificates)
    assert read == [made]


def test_who_replaces_the_class_gets_contexts_of_it(
    certificates: str, read: list[ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other:
        def __init__(self, protocol: int) -> None: ...

        def load_verify_locations(self, *files: object) -> None: ...

    monkeypatch.setattr(ssl, "SSLContext", Other)
    assert isinstance(_made(certificates), Other)


def test_a_warm_up_that_makes_none_changes_nothing(certificates: str) -> None:
    warm_up_with_contexts(lambda: None)
    assert ssl.create_default_context is ORIGINAL
