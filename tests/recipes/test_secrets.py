"""A secret that stands in the text of a recipe is kept nowhere: not in the body, not aside, not in what is held, not in the text."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from apps.diagnosis.open_secrets import in_words, is_telling, takes_secret
from apps.plan.spec import validate
from apps.recipes.formats import bodies
from apps.recipes.formats.imported import taken
from apps.recipes.formats.recognise import read

S = "Zq7hunter2Xw"  # of no known shape: only its place tells
YAML = "recipe_version: '1'\ncontainer: c\n"
# fmt: off
CASES = {
    "eugr env": f"recipe_version: '1'\ncontainer: c\nenv:\n  HF_TOKEN: {S}\ncommand: vllm serve a/b\n",
    "eugr env name odd": f"recipe_version: '1'\ncontainer: c\nenv:\n  HUGGING_FACE_HUB_TOKEN: {S}\n  MY_PASS: {S}b\ncommand: vllm serve a/b\n",
    "eugr default used": f"recipe_version: '1'\ncontainer: c\ndefaults:\n  api_key: {S}\ncommand: vllm serve a/b --api-key {{api_key}}\n",
    "eugr default key": f"recipe_version: '1'\ncontainer: c\ndefaults:\n  key: {S}\ncommand: vllm serve a/b --api-key {{key}}\n",
    "eugr default unused": f"recipe_version: '1'\ncontainer: c\ndefaults:\n  hf_token: {S}\ncommand: vllm serve a/b\n",
    "eugr unknown key": f"recipe_version: '1'\ncontainer: c\nhf_token: {S}\ncommand: vllm serve a/b\n",
    "eugr unknown nested": f"recipe_version: '1'\ncontainer: c\nauth:\n  password: {S}\n  token: {S}\n  x:\n  - api_key: {S}\ncommand: vllm serve a/b\n",
    "eugr build_args": f"recipe_version: '1'\ncontainer: c\nbuild_args: [--token, {S}]\ncommand: vllm serve a/b\n",
    "eugr build_args2": f"recipe_version: '1'\ncontainer: c\nbuild_args: ['HF_TOKEN={S}']\ncommand: vllm serve a/b\n",
    "eugr cmd prefix": f"recipe_version: '1'\ncontainer: c\ncommand: |\n  HF_TOKEN={S} vllm serve a/b\n",
    "eugr cmd export": f"recipe_version: '1'\ncontainer: c\ncommand: |\n  export HF_TOKEN='{S}'\n  vllm serve a/b\n",
    "eugr login": f"recipe_version: '1'\ncontainer: c\ncommand: |\n  huggingface-cli login --token {S}\n  vllm serve a/b\n",
    "eugr docker login": f"recipe_version: '1'\ncontainer: c\ncommand: |\n  docker login -u me -p {S} r.example\n  vllm serve a/b\n",
    "eugr echo pipe": f"recipe_version: '1'\ncontainer: c\ncommand: |\n  echo {S} | docker login --password-stdin\n  vllm serve a/b\n",
    "eugr curl": f"recipe_version: '1'\ncontainer: c\ncommand: |\n  curl -H 'X-Api-Key: {S}' http://x; curl -u me:{S} http://y\n  vllm serve a/b\n",
    "eugr quoted multi": f"recipe_version: '1'\ncontainer: c\ncommand: |\n  vllm serve a/b \\\n    --api-key \\\n    '{S}'\n",
    "eugr split quotes": "recipe_version: '1'\ncontainer: c\ncommand: vllm serve a/b --api-key Zq7'hunter2'Xw\n",
    "eugr escaped": "recipe_version: '1'\ncontainer: c\nenv:\n  HF_TOKEN: \"Zq7\\u0068unter2Xw\"\ncommand: vllm serve a/b\n",
    "eugr folded": f"recipe_version: '1'\ncontainer: c\nenv:\n  HF_TOKEN: >-\n    {S}\ncommand: vllm serve a/b\n",
    "anchor": f"recipe_version: '1'\ncontainer: c\nx: &t {S}\nenv:\n  HF_TOKEN: *t\ncommand: vllm serve a/b\n",
    "multi apikey": f"vllm serve a/b --api-key {S} {S}b",
    "eq": f"vllm serve a/b --api-key={S}",
    "underscore": f"vllm serve a/b --api_key={S}",
    "underscore2": f"vllm serve a/b --api_key {S}",
    "abbrev": f"vllm serve a/b --api-ke {S}",
    "sglang": f"sglang serve --model-path a/b --api-key {S} --admin-api-key {S}",
    "sglang2": f"python3 -m sglang.launch_server --model-path a/b --ssl-keyfile-password {S}",
    "llama": f"llama-server -hf a/b --api-key {S}",
    "llama hft": f"llama-server -hf a/b -hft {S}",
    "llama hf-token": f"llama-server -hf a/b --hf-token {S}",
    "envs": f"HF_TOKEN={S} VLLM_API_KEY='{S}b' vllm serve a/b",
    "set default": f"vllm serve a/b --api-key ${{KEY:-{S}}}",
    "env default": f"HF_TOKEN=${{HF_TOKEN:-{S}}} vllm serve a/b",
    "docker -e": f"docker run -e HF_TOKEN={S} img vllm serve a/b",
    "docker -eX": f"docker run -eHF_TOKEN={S} img vllm serve a/b",
    "docker --env=": f"docker run --env=HF_TOKEN={S} img vllm serve a/b",
    "docker --env q": f"docker run --env 'HF_TOKEN={S}' img vllm serve a/b",
    "docker -e q": f'docker run -e "HF_TOKEN={S}" -e PASSWORD=\'{S}c\' img vllm serve a/b',
    "docker -e default": f'docker run -e "HF_TOKEN=${{HF_TOKEN:-{S}}}" img vllm serve a/b',
    "docker -e expands part": f'docker run -e "HF_TOKEN={S}$X" img vllm serve a/b',
    "docker export before": f"export HF_TOKEN={S}\nexport FOO={S}\ndocker run -e HF_TOKEN -e FOO img vllm serve a/b",
    "docker assign before": f"TOK={S}\ndocker run -e HF_TOKEN=$TOK img vllm serve a/b",
    "docker assign sudo": f"HF_TOKEN={S} docker run -e HF_TOKEN img vllm serve a/b",
    "docker login": f"docker login -u u -p {S} && docker run img vllm serve a/b",
    "docker label": f"docker run --label token={S} --label a.api_key={S} img vllm serve a/b",
    "docker healthcmd": f"docker run --health-cmd 'curl -H \"Authorization: Bearer {S}\" localhost' img vllm serve a/b",
    "docker logopt": f"docker run --log-driver splunk --log-opt splunk-token={S} img vllm serve a/b",
    "docker volume cifs": f"docker run --mount 'type=volume,dst=/x,volume-opt=o=addr=1.2.3.4,username=u,password={S}' img vllm serve a/b",
    "docker bash -c": f"docker run img bash -c 'export HF_TOKEN={S}; vllm serve a/b --api-key {S}'",
    "docker bundled": f"docker run -ite HF_TOKEN={S} img vllm serve a/b",
    "compose env": f"services:\n  a:\n    image: vllm/vllm-openai\n    environment:\n      HF_TOKEN: {S}\n    command: --model a/b\n",
    "compose env list": f"services:\n  a:\n    image: vllm/vllm-openai\n    environment:\n    - HF_TOKEN={S}\n    - 'MY_API_KEY={S}'\n    command: --model a/b --api-key {S}\n",
    "compose env default": f"services:\n  a:\n    image: vllm/vllm-openai\n    environment:\n      HF_TOKEN: ${{HF_TOKEN:-{S}}}\n    command: --model a/b\n",
    "compose other svc": f"services:\n  a:\n    image: vllm/vllm-openai\n    command: --model a/b\n  db:\n    image: postgres\n    environment:\n      POSTGRES_PASSWORD: {S}\n",
    "compose other svc list": f"services:\n  a:\n    image: vllm/vllm-openai\n    command: --model a/b\n  db:\n    image: postgres\n    environment: ['POSTGRES_PASSWORD={S}']\n    command: [redis, --requirepass, {S}]\n",
    "compose x-": f"x-env: &e\n  HF_TOKEN: {S}\nservices:\n  a:\n    image: vllm/vllm-openai\n    command: --model a/b\n    environment:\n      <<: *e\n",
    "compose x- unused": f"x-env: &e\n  HF_TOKEN: {S}\nservices:\n  a:\n    image: vllm/vllm-openai\n    command: --model a/b\n",
    "compose labels": f"services:\n  a:\n    image: vllm/vllm-openai\n    command: --model a/b\n    labels:\n      api_key: {S}\n      t: {{token: {S}}}\n    build:\n      args:\n        HF_TOKEN: {S}\n",
    "compose build args list": f"services:\n  a:\n    image: vllm/vllm-openai\n    command: --model a/b\n    build:\n      args: ['HF_TOKEN={S}']\n",
    "compose health": f"services:\n  a:\n    image: vllm/vllm-openai\n    command: --model a/b\n    healthcheck:\n      test: [CMD, curl, -H, 'Authorization: Bearer {S}', x]\n",
    "compose health2": f"services:\n  a:\n    image: vllm/vllm-openai\n    command: --model a/b\n    healthcheck:\n      test: [CMD, curl, --api-key, {S}, x]\n",
    "compose secrets": f"services:\n  a:\n    image: vllm/vllm-openai\n    command: --model a/b\nsecrets:\n  hf:\n    environment: X\n    content: {S}\n",
    "compose logging": f"services:\n  a:\n    image: vllm/vllm-openai\n    command: --model a/b\n    logging:\n      options:\n        splunk-token: {S}\n",
    "compose cmd list": f"services:\n  a:\n    image: vllm/vllm-openai\n    command: [--model, a/b, --api-key, {S}]\n",
    "sparkrun env": f"recipe_version: '2'\nmodel: a/b\nruntime: vllm\ncontainer: c\nenv:\n  HF_TOKEN: {S}\n  WANDB_API_KEY: {S}\n",
    "sparkrun meta": f"recipe_version: '2'\nmodel: a/b\nruntime: vllm\ncontainer: c\nmetadata:\n  token: {S}\n  hub: {{password: {S}}}\n",
    "sparkrun defaults": f"recipe_version: '2'\nmodel: a/b\nruntime: vllm\ncontainer: c\ndefaults:\n  api_key: {S}\n",
    "sparkrun hook": f"recipe_version: '2'\nmodel: a/b\nruntime: vllm\ncontainer: c\npre_exec:\n- export HF_TOKEN={S}\n- {{run: 'hf auth login --token {S}', password: {S}}}\n",
    "sparkrun builder": f"recipe_version: '2'\nmodel: a/b\nruntime: vllm\ncontainer: c\nbuilder_config:\n  hf_token: {S}\n",
    "sparkrun executor": f"recipe_version: '2'\nmodel: a/b\nruntime: vllm\ncontainer: c\nexecutor_config:\n  registry_password: {S}\n  extra_args: ['-e', 'HF_TOKEN={S}']\n",
    "own env": f"sparkweb: 1\nname: a\nspec:\n  model: a/b\n  image: i\n  environment:\n    HF_TOKEN: {S}\n  arguments: [--api-key, {S}]\n",
    "own secrets named": f"sparkweb: 1\nname: a\nspec:\n  model: a/b\n  image: i\n  secrets:\n    HF_TOKEN: hf_{S}Abcdefgh1234\n",
    "comment": f"# HF_TOKEN={S}\nvllm serve a/b",
    "comment yaml": f"# HF_TOKEN: {S}\nrecipe_version: '1'\ncontainer: c\ncommand: vllm serve a/b\n",
    "url cred": f"vllm serve a/b --foo https://me:{S}@host/x",
    "json arg": f"vllm serve a/b --kv-transfer-config '{{\"api_key\": \"{S}\"}}'",
    "json arg2": f"vllm serve a/b --kv-transfer-config '{{\"password\":\"{S}\"}}' --x.token={S} --otlp-headers authorization={S}",
    "description": f"recipe_version: '1'\ndescription: 'use HF_TOKEN={S}'\ncontainer: c\ncommand: vllm serve a/b\n",
    "ssl": f"vllm serve a/b --ssl-keyfile-password {S}",
    "two": f"vllm serve a/b --api-key\t{S}",
    "docker container login multi": f"docker run --name x img sh -c \"vllm serve a/b --api-key '{S}'\"",
    "env in cmd": f"docker run img env HF_TOKEN={S} vllm serve a/b",
    "uv run env": f"uv run --with x env HF_TOKEN={S} vllm serve a/b",
    "command engine": f"docker run img ./server --token {S} --auth {S}",
    "ANSI-C": f"vllm serve a/b --api-key $'{S}'",
    "expands": f"vllm serve a/b --api-key \"{S}$X\"",
}
# fmt: on


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_no_secret_is_kept_wherever_it_stands(text: str) -> None:
    found = read(text)
    kept = json.dumps(asdict(found), ensure_ascii=False)
    assert "hunter2" not in kept and "unter2Xw" not in kept
    if found.source:  # what is kept of the text is read to the same
        assert read(found.source).body == found.body


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (YAML + "env: {MY_PASSWORD: 123456789012}\ncommand: vllm serve a/b\n", "123456"),
        (YAML + "env: {MY_PASSWORD: 1234567.5}\ncommand: vllm serve a/b\n", "123456"),
        (YAML + "env: {MY_PASSWORD: abc}\ncommand: vllm serve a/b\n", "abc"),
        (YAML + 'env: {HF_TOKEN: "Zq7\\u0068erjag"}\ncommand: vllm serve a/b\n', "erjag"),
        (YAML + "env:\n  HF_TOKEN: Zq7erjag\n    Zq8erjag\ncommand: vllm serve a/b\n", "erjag"),
        ("vllm serve a/b --api-key Zq7'hunter2'Xw", "hunter2"),
    ],
)
def test_nor_one_that_is_written_in_another_way(text: str, secret: str) -> None:
    found = read(text)
    assert secret not in json.dumps(asdict(found))
    assert found.body["secrets"]


@pytest.mark.parametrize("word", ["vllm", "process", "a/b", "single", "0.0.0.0", "8000"])
def test_a_key_that_is_a_word_changes_nothing_else(word: str) -> None:
    """`--api-key vllm` is what many write for a key that nobody checks."""
    plain, keyed = read("vllm serve a/b --port 8000"), read(f"vllm serve a/b --port 8000 --api-key {word}")
    assert {**keyed.body, "secrets": []} == {**plain.body, "secrets": []}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"arguments": ["--api-ke", S]}, "arguments"),
        ({"arguments": ["--otlp-headers", f"authorization={S}"]}, "arguments"),
        ({"arguments": ["--x.token=" + S]}, "arguments"),
        ({"arguments": ["--max-num-seqs", "[masked]"]}, "arguments"),
        ({"engine": "llamacpp", "arguments": ["-hft", S]}, "arguments"),
        ({"environment": [["MY_PASS", S]]}, "environment"),
        ({"environment": [["HEADERS", f"x-api-key={S}"]]}, "environment"),
        ({"secrets": [{"variable": "HF_TOKEN", "name": "hf_AbCdEfGhIjKlMnOp"}]}, "secrets"),
    ],
)
def test_what_a_person_writes_is_refused_instead(fields: dict[str, object], field: str) -> None:
    found = validate(bodies.spec_of({"model": "a/b", "image": "i", **fields}, 1))
    assert [one.field for one in found] == [field]
    assert S not in str(found) and "hf_Ab" not in str(found)


def test_a_command_that_lost_its_secret_is_not_started() -> None:
    """Taken over, the program would be given our own mark instead."""
    found = read(f"docker run img ./server --token {S}")
    body = taken(found.body, found.held)
    assert body["arguments"] == ["./server", "--token", "[masked]"]
    assert "not kept" in bodies.errors(body, 1)[0].message


def test_names_that_tell() -> None:
    for name in (
        "HF_TOKEN",
        "splunk-token",
        "registry_password",
        "X-Api-Key",
        "hfToken",
        "PGPASSWORD",
        "authorization",
    ):
        assert is_telling(name), name
    for name in (
        "eos_token",
        "max_token",
        "tokenizer",
        "tokens",
        "key",
        "keys",
        "secrets",
        "PWD",
        "compass",
        "bypass",
        "monkey",
    ):
        assert not is_telling(name), name
    for option in ("--hf-token", "--hf_token", "--admin-api-key", "--api-k", "-hft"):
        assert takes_secret(option), option
    for option in ("--tokenizer", "--api-key-file", "--max-num-batched-tokens", "--api-server-count", "--port", "-p"):
        assert not takes_secret(option), option
    assert not list(in_words(["vllm", "serve", "a/b", "--port", "8000", "-p", "x", "--api-key"]))
