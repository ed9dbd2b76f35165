"""Makes a tiny random Qwen3 with tokenizer and chat template in several shards: real files for a real engine, no hub.

Runs with the engine's own Python (torch, transformers, tokenizers): `python tiny_model.py FOLDER TEXT_FILE`.
Same versions, same text: same bytes. 2.9 million parameters, 5.8 MB, about 6 s.
"""

# mypy: ignore-errors
# (its imports exist only in the engine's environment)

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 1024
CONTEXT = 2048  # tokens
SHARD_SIZE = "1.5MB"  # gives four shards
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer_from(text: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on `text`; it can encode any input."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
    )


def model_for(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Random weights, always the same ones, in bfloat16."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.eos_token_id,
    )
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.config.architectures = ["Qwen3ForCausalLM"]
    return model


def main(folder: Path, text: Path) -> None:
    tokenizer = tokenizer_from(text.read_text(encoding="utf-8"))
    model_for(tokenizer).save_pretrained(folder, max_shard_size=SHARD_SIZE)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
