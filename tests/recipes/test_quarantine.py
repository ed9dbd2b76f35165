"""Ways around a decision: what runs code or widens rights waits, however it is spelt."""

from __future__ import annotations

import pytest

from apps.recipes.formats.recognise import read
from apps.recipes.formats.screening import CODE_OPTIONS, REACH_OPTIONS, WHOLE, waits

MODULE_JSON = '{"x": [{"kv_connector_module_path": "evil"}]}'


def line(words: str, engine: str = "vllm") -> str:
    start = {"vllm": "vllm serve a/b", "sglang": "sglang serve --model-path a/b", "llamacpp": "llama-server -hf a/b"}
    return f"{start[engine]} {words}"


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        ("--trust", "vllm"),
        ("--tr", "vllm"),
        ("--trust_remote", "vllm"),
        ("--config /x.yaml", "vllm"),
        ("--config=/x.yaml", "sglang"),
        ("--kv-transfer-config.kv_connector_module_path evil", "vllm"),
        ("--structured-outputs-config.reasoning_parser_plugin /x.py", "vllm"),
        ("--hf-overrides.auto_map.AutoModel x--m.C", "vllm"),
        ("""--hf-overrides '{"auto_map": {"AutoModel": "evil/x--m.C"}}'""", "vllm"),
        ("""--compilation-config '{"backend": "evil.mod.fn"}'""", "vllm"),
        ("""-O '{"inductor_passes": {"x": "evil.fn"}}'""", "vllm"),
        ("-O.backend=evil.mod", "vllm"),
        ("--compilation-config.backend evil.mod", "vllm"),
        (f"--additional-config '{MODULE_JSON}'", "vllm"),
        ("--tool-server demo", "vllm"),
        ("--otlp-traces-endpoint http://evil", "sglang"),
        ("--rpc evil:1", "llamacpp"),
        ("--media-path /etc", "llamacpp"),
        ("--webui-mcp-proxy", "llamacpp"),
        ("--models-preset /x", "llamacpp"),
    ],
)
def test_options_that_wait(words: str, engine: str) -> None:
    found = read(line(words, engine))
    option = words.split()[0]
    assert [one.kind for one in found.held if one.kind in ("trust", "reach")], found
    assert not any(word.startswith(option) for word in found.body.get("arguments", ()))


@pytest.mark.parametrize("option", sorted(CODE_OPTIONS | REACH_OPTIONS))
def test_every_beginning_of_an_option_waits_with_it(option: str) -> None:
    """argparse takes a beginning for the whole where no other option has it."""
    for end in range(4, len(option) + 1):
        begun = option[:end]
        assert begun in WHOLE or begun.endswith("-") or waits(begun, [begun, "x"]) is not None, begun


@pytest.mark.parametrize(
    "words",
    [
        "--runner pooling",
        "--tokenizer a/b",
        "--max-num-seqs 8",
        "--enable-prefix-caching",
        "--load-format safetensors",
        """--speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'""",
        """--compilation-config '{"backend": "inductor", "cudagraph_mode": "FULL"}'""",
        """--hf-overrides '{"quantization_config": {"modules_to_not_convert": ["lm_head"]}}'""",
        "--chat-template /templates/x.jinja",
    ],
)
def test_ordinary_options_do_not(words: str) -> None:
    assert not read(line(words)).held


@pytest.mark.parametrize(
    "name",
    [
        "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH", "HOSTALIASES", "OMPI_MCA_mca_base_component_path", "UCX_MODULE_DIR",
        "VLLM_NCCL_SO_PATH", "VLLM_CUDART_SO_PATH", "TVM_LIBRARY_PATH", "OMP_TOOL_LIBRARIES", "NVSHMEM_BOOTSTRAP_PLUGIN",
        "TRITON_PTXAS_PATH", "CUDA_HOME", "VLLM_LOGGING_CONFIG_PATH", "RAY_ADDRESS", "FLASHINFER_CUBIN_URL", "HF_ENDPOINT",
        "OTEL_EXPORTER_OTLP_ENDPOINT", "LD_PRELOAD", "PYTHONSTARTUP", "https_proxy", "LLAMA_ARG_TOOLS", "LLAMA_ARG_RPC",
        "LLAMA_ARG_STATIC_PATH", "LLAMA_ARG_MEDIA_PATH", "LLAMA_ARG_MODELS_PRESET",
    ],
)  # fmt: skip
def test_variables_that_wait(name: str) -> None:
    found = read(f"docker run -e {name}=/x img vllm serve a/b")
    assert [one.kind for one in found.held] == ["environment"] and "environment" not in found.body


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_MODULE_LOADING",
        "NCCL_DEBUG_FILE",
        "HF_HOME",
        "OMP_NUM_THREADS",
        "VLLM_ATTENTION_BACKEND",
        "LLAMA_ARG_CTX_SIZE",
    ],
)
def test_ordinary_variables_do_not(name: str) -> None:
    assert read(f"docker run -e {name}=x img vllm serve a/b").body["environment"] == [[name, "x"]]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ("-itv /:/host", "volume"),
        ("-dv/:/host", "volume"),
        ("-itu root", "user"),
        ("--privileged=true", "privileged"),
        ("--pid host", "security"),
    ],
)
def test_bundled_short_options_are_told_apart(options: str, kind: str) -> None:
    found = read(f"docker run {options} img vllm serve a/b")
    assert [one.kind for one in found.held] == [kind]
    assert found.body["image"] == "img" and found.body["model"] == "a/b"
