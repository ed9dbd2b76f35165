import datetime

import pytest

from apps.audit.secrecy import WITHHELD, canonical, clean, is_telling, withheld

SENTINEL = "Zk8-plain-sentinel-value"


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "Password",
        "db_password",
        "passphrase",
        "HF_TOKEN",
        "token",
        "tokens",
        "api_key",
        "api-key",
        "private_key",
        "client_secret",
        "secret",
        "key",
        "secret_value",
        "Authorization",
        "ssh key",
    ],
)
def test_values_under_telling_names_are_withheld(name: str) -> None:
    assert is_telling(name)
    assert withheld({name: SENTINEL}) == {name: WITHHELD}
    assert withheld({"outer": [{name: SENTINEL}]}) == {"outer": [{name: WITHHELD}]}
    assert withheld({name: [SENTINEL, SENTINEL]}) == {name: [WITHHELD, WITHHELD]}


@pytest.mark.parametrize(
    "name", ["public_key", "host_key", "host_keys", "keyboard", "max_tokens_seen", "tokenizer", "key_type"]
)
def test_harmless_names_are_kept(name: str) -> None:
    assert withheld({name: "ssh-ed25519 AAAA"}) == {name: "ssh-ed25519 AAAA"}


def test_whether_a_secret_is_set_still_shows() -> None:
    assert withheld(
        {"password": "", "token": None, "password_set": True, "max_num_batched_tokens": 8192, "tokens": 5}
    ) == {
        "password": "",
        "token": None,
        "password_set": True,
        "max_num_batched_tokens": 8192,
        "tokens": 5,
    }


@pytest.mark.parametrize(
    "text",
    [
        "hf_abcdefGHIJKLmnop0123456789",
        "sk-abcdefghijklmnopqrstuv",
        "sw_" + "a1B2" * 10,
        "Bearer abcdef0123456789",
        "redis://user:hunter22@host/0",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
def test_secrets_of_a_known_shape_are_masked_anywhere(text: str) -> None:
    stored = clean(f"because {text} was used")
    assert stored.startswith("because ") and "was used" in stored
    for secret in ("abcdefGHIJKL", "sk-abcdefghijkl", "a1B2a1B2", "abcdef0123456789", "hunter22", "AAAA"):
        assert secret not in stored


def test_what_a_database_refuses_is_replaced() -> None:
    assert clean("a\0b\ud800c") == "a\ufffdb\ufffdc"
    assert clean("x" * 20, 10) == "x" * 9 + "…"


def test_any_value_becomes_plain_json() -> None:
    moment = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)
    value = withheld({"when": moment, "set": {3, 1}, 7: b"raw", "nested": {"a": (1, 2.5)}})
    assert canonical(value) == '{"7":"b\'raw\'","nested":{"a":[1,2.5]},"set":[1,3],"when":"2026-11-30T00:00:00+00:00"}'
