"""A language model of single characters, small enough to be trained in a minute: for examples and tests."""

from __future__ import annotations

from typing import Any

import torch

from surefoot.llm.models import transformers_module
from surefoot.llm.policy import LMPolicy

END, PAD = "<end>", "<pad>"


def character_tokenizer(alphabet: str) -> Any:
    """A tokenizer of transformers with one token for each character, an end token and a padding token."""
    transformers = transformers_module()
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    numbers = {sign: number for number, sign in enumerate([PAD, END, *sorted(set(alphabet))])}
    core = Tokenizer(models.WordLevel(numbers, unk_token=PAD))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, pad_token=PAD, eos_token=END)


def character_policy(
    alphabet: str,
    *,
    layers: int = 2,
    width: int = 96,
    heads: int = 4,
    context: int = 32,
    rotary: bool = False,
    seed: int = 0,
    temperature: float = 1.0,
) -> LMPolicy:
    """A transformer with random weights over the characters of `alphabet`: learned positions, or rotary ones.

    Args:
        alphabet: its characters.
        layers: of the transformer.
        width: of its activations; `heads` divides it.
        heads: of attention.
        context: the most tokens of prompt and answer.
        rotary: a Llama instead of a GPT-2.
        seed: of the weights.
        temperature: as of `LMPolicy`.
    """
    transformers = transformers_module()
    tokenizer = character_tokenizer(alphabet)
    spread = (
        0.8 / width**0.5
    )  # of the weights; transformers' 0.02, meant for wide models, takes twice as many steps here
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    if rotary:
        config = transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            max_position_embeddings=context,
            initializer_range=spread,
            **ids,
        )
    else:
        config = transformers.GPT2Config(
            vocab_size=len(tokenizer),
            n_embd=width,
            n_layer=layers,
            n_head=heads,
            n_positions=context,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            initializer_range=spread,
            **ids,
        )
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
    return LMPolicy(model, tokenizer, temperature)
