"""Which addresses and which openness the settings accept, and the words with which they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from sparkweb import env, reach
from tests.production.conftest import OURS


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OURS:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(f"{name}_FILE", raising=False)


def reached(monkeypatch: pytest.MonkeyPatch, **settings: str) -> reach.Reach:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return reach.from_environment()


@pytest.mark.parametrize(
    ("settings", "origins", "https"),
    [
        ({}, ("http://127.0.0.1:8000", "http://localhost:8000"), False),
        ({"PORT": "80"}, ("http://127.0.0.1", "http://localhost"), False),
        ({"TLS_SELF_SIGNED": "1", "HOST": "0.0.0.0"}, ("https://127.0.0.1:8000", "https://localhost:8000"), True),
        ({"ORIGINS": "https://sparkweb.example"}, ("https://sparkweb.example",), True),  # a proxy on this machine
        (
            {"HOST": "0.0.0.0", "ALLOW_PLAIN_HTTP": "1", "ORIGINS": "http://10.0.0.1:8000"},
            ("http://10.0.0.1:8000",),
            False,
        ),
        ({"HOST": "::1", "ORIGINS": "http://[::1]:8000"}, ("http://[::1]:8000",), False),
        (
            {"TLS_CERTIFICATE": "/c", "TLS_KEY": "/k", "ORIGINS": "https://a.example:8443"},
            ("https://a.example:8443",),
            True,
        ),
    ],
)
def test_accepted(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], origins: tuple[str, ...], https: bool
) -> None:
    found = reached(monkeypatch, **settings)
    assert (found.origins, found.https) == (origins, https)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"PROXIES": "proxy.example"}, "neither an address nor a network"),
        ({"PROXIES": "127.0.0.1,*"}, "neither an address nor a network"),
        ({"PROXIES": "10.0.0.1/8"}, "neither an address nor a network"),
        ({"PROXIES": "0.0.0.0/0"}, "is everybody"),
        ({"HOST": "0.0.0.0"}, "TLS_SELF_SIGNED=1"),
        ({"HOST": "10.0.0.1", "ORIGINS": "https://sparkweb.example"}, "ALLOW_PLAIN_HTTP=1"),
        ({"ORIGINS": "http://sparkweb.example"}, "plain HTTP beyond loopback"),
        ({"ORIGINS": "https://sparkweb.example/"}, "write https://sparkweb.example instead"),
        ({"ORIGINS": "https://Sparkweb.example"}, "write https://sparkweb.example instead"),
        ({"ORIGINS": "https://sparkweb.example:443"}, "write https://sparkweb.example instead"),
        ({"ORIGINS": "https://sparkweb.example/path?x"}, "write https://sparkweb.example instead"),
        ({"ORIGINS": "sparkweb.example"}, "no origin"),
        ({"ORIGINS": "https://*.example"}, "no origin"),
        ({"ORIGINS": "https://u:p@sparkweb.example"}, "no origin"),
        ({"ORIGINS": "https://sparkweb.example:99999"}, "no origin"),
        ({"ORIGINS": "https://a.example,http://localhost:8000"}, "of one kind"),
        ({"TLS_SELF_SIGNED": "1", "ORIGINS": "http://localhost:8000"}, "each begins with https"),
        ({"TLS_CERTIFICATE": "/c"}, "TLS_KEY is missing"),
        ({"TLS_CERTIFICATE": "/c", "TLS_KEY": "/k", "TLS_SELF_SIGNED": "1"}, "choose one"),
        ({"PORT": "eighty"}, "PORT='eighty' is not a port"),
        ({"PORT": "65536"}, "is not a port"),
        ({"ALLOW_PLAIN_HTTP": "maybe"}, "use 1 or 0"),
    ],
)
def test_refused(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], words: str) -> None:
    with pytest.raises(ImproperlyConfigured) as refused:
        reached(monkeypatch, **settings)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "in_the_open"),
    [
        ({}, False),
        ({"HOST": "0.0.0.0", "ALLOW_PLAIN_HTTP": "1"}, False),  # compose on a published loopback port
        ({"HOST": "0.0.0.0", "ALLOW_PLAIN_HTTP": "1", "ORIGINS": "http://10.0.0.1:8000"}, True),
        ({"ALLOW_PLAIN_HTTP": "1", "ORIGINS": "http://localhost:8000,http://sparkweb.example"}, True),
        ({"ORIGINS": "https://sparkweb.example"}, False),  # a proxy ends TLS: the request itself is plain
        ({"TLS_SELF_SIGNED": "1", "ORIGINS": "https://10.0.0.1:8000", "PROXIES": "10.0.0.7,fd00::/8"}, False),
    ],
)
def test_the_open_is_told_by_the_origins(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], in_the_open: bool
) -> None:
    found = reached(monkeypatch, **settings)
    assert found.open_words is in_the_open
    assert ",".join(found.proxies) == settings.get("PROXIES", "")


def test_a_password_comes_from_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "p").write_text("p@ss/word:\n")
    monkeypatch.setenv("DATABASE_PASSWORD_FILE", str(tmp_path / "p"))
    monkeypatch.setenv("DATABASE_URL", "postgres://sparkweb@db:5432/sparkweb?sslmode=require")
    assert (
        env.url("DATABASE_URL", "DATABASE_PASSWORD")
        == "postgres://sparkweb:p%40ss%2Fword%3A@db:5432/sparkweb?sslmode=require"
    )
    monkeypatch.setenv("REDIS_PASSWORD", "x")
    monkeypatch.setenv("REDIS_URL", "redis://redis:6379/0")
    assert env.url("REDIS_URL", "REDIS_PASSWORD") == "redis://:x@redis:6379/0"
    monkeypatch.setenv("REDIS_URL", "redis://:y@redis:6379/0")
    with pytest.raises(ImproperlyConfigured, match="give one of them"):
        env.url("REDIS_URL", "REDIS_PASSWORD")
    monkeypatch.setenv("REDIS_URL_FILE", str(tmp_path / "none"))
    with pytest.raises(ImproperlyConfigured, match=r"REDIS_URL_FILE=.*can't be read"):
        env.text("REDIS_URL")
