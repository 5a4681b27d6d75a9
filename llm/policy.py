"""A causal language model as a policy: it samples answers to prompts, and gives their log-probabilities again.

What is trained must be what was sampled. So prompts are padded on the left and answers on the right; positions are
counted from the first real token, in both passes; logits are divided by the sampling temperature in both; nothing is
dropped out; and no truncation (top-k, top-p) of a model's own generation settings applies.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from surefoot.core.base.errors import ConfigError
from surefoot.llm.continuous import continuous_batch
from surefoot.llm.losses.selection import completion_mask, masked_logits
from surefoot.llm.models import quiet, read_model
from surefoot.llm.nucleus import Follower, Nucleus

OWN = "own"
"""In `Rollout.kept` of answers of several turns: (B, C), 1 at tokens that the policy wrote."""
LOWEST = -1e30
"""A logit whose probability is 0."""
UNITS_AT_ONCE = 1 << 24
"""Most logits that are held at once while log-probabilities are computed: 64 MB of float32, and a few copies."""


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Answers to prompts, B of each. A prompt's answers stand side by side."""

    prompt_ids: Tensor
    """(B, P) int64, padded on the left."""
    prompt_mask: Tensor
    """(B, P) float32, 1 at real tokens."""
    completion_ids: Tensor
    """(B, C) int64, padded on the right."""
    completion_mask: Tensor
    """(B, C) float32, 1 up to the first end token and at it."""
    log_prob: Tensor
    """(B, C) float32, of the policy that sampled, at its temperature; 0 where masked."""
    finished: Tensor
    """(B,) bool: the answer has an end token."""
    kept: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    """(B, C, ...) what else training reads of each token: `allowed` (B, C, V) bool, the tokens that could be drawn."""

    def rows(self, which: Tensor | slice) -> Rollout:
        """Some of the rows."""
        plain = [field.name for field in dataclasses.fields(self) if field.name != "kept"]
        values: dict[str, Any] = {name: getattr(self, name)[which] for name in plain}
        return Rollout(**values, kept={name: value[which] for name, value in self.kept.items()})

    @property
    def trained(self) -> Tensor:
        """(B, C): the real tokens that the policy wrote, which are all but an environment's replies."""
        return self.completion_mask * self.kept[OWN] if OWN in self.kept else self.completion_mask

    def answers(self) -> list[list[int]]:
        """The tokens of each answer without its end token and padding."""
        ends = self.completion_mask.sum(-1).long() - self.finished.long()
        return [row[:end].tolist() for row, end in zip(self.completion_ids, ends.tolist(), strict=True)]


class LMPolicy:
    """A causal model of transformers with the tokenizer that belongs to it."""

    def __init__(self, model: Any, tokenizer: Any, temperature: float = 1.0) -> None:
        """Take a model; it is put into evaluation mode, so that nothing is dropped out.

        Args:
            model: any `AutoModelForCausalLM`, or one with adapters of peft.
            tokenizer: must have an end token; where it has no padding token, the end token pads.
            temperature: above 0; sampling and log-probabilities are both at it.

        Raises:
            ConfigError: a temperature that is not above 0, or a tokenizer without an end token.
        """
        if not temperature > 0:
            raise ConfigError(f"temperature={temperature} must be above 0; greedy=True asks for the likeliest tokens")
        if tokenizer.eos_token_id is None:
            raise ConfigError("the tokenizer has no end token: set tokenizer.eos_token, an answer could not end")
        self.model, self.tokenizer, self.temperature = model.eval(), tokenizer, temperature
        given = getattr(model.generation_config, "eos_token_id", None)
        more = given if isinstance(given, list) else [] if given is None else [given]
        self.ends: list[int] = sorted({tokenizer.eos_token_id, *more})
        self.pad: int = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        text = inner.config.get_text_config()
        self.context: int | None = getattr(text, "max_position_embeddings", None)
        self.vocabulary: int = text.vocab_size
        self._inner = inner
        self._plain_head: bool | None = None  # asked of the model at first use

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def encode(self, prompts: Sequence[str | list[dict[str, str]]]) -> list[list[int]]:
        """Tokens of each prompt: a text, or messages by the tokenizer's chat template.

        Raises:
            ConfigError: messages where the tokenizer has no template, or one that can't be rendered; a prompt without a
                token.
        """
        found = []
        for number, prompt in enumerate(prompts):
            if isinstance(prompt, str):
                ids = self.tokenizer(prompt)["input_ids"]
            elif self.tokenizer.chat_template is None:
                raise ConfigError(f"prompt {number} is a list of messages, and the tokenizer has no chat template")
            else:
                ids = self._chat_ids(prompt, number)
            if not ids:
                raise ConfigError(f"prompt {number} has no tokens: give it a text, or a first token of its own")
            found.append(list(ids))
        return found

    def _chat_ids(self, messages: list[dict[str, str]], number: int) -> list[int]:
        """Tokens of messages; the template is the model's own and is rendered in Jinja's sandbox."""
        try:
            chat = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        except Exception as error:  # whatever a template raises
            raise ConfigError(
                f"prompt {number}: the tokenizer's chat template can't be rendered ({type(error).__name__}: {error}); "
                "give prompts that it takes, or texts"
            ) from error
        ids: list[int] = chat["input_ids"]
        return ids

    def decode(self, rollout: Rollout) -> list[str]:
        """The text of each answer, without special tokens."""
        return [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in rollout.answers()]

    def check_lengths(self, prompts: Sequence[Sequence[int]], new: int) -> None:
        """Refuse prompts that, with `new` tokens more, are longer than the model's context.

        Raises:
            ConfigError: names the first of them.
        """
        for number, prompt in enumerate(prompts):
            if self.context is not None and len(prompt) + new > self.context:
                raise ConfigError(
                    f"prompt {number} has {len(prompt)} tokens, and with max_new_tokens={new} that is more than the "
                    f"model's context of {self.context}: shorten the prompt or the answer"
                )

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        new: int,
        seed: int,
        *,
        greedy: bool = False,
        at_once: int = 256,
        within: Nucleus | None = None,
        continuous: bool = False,
        stops: Sequence[int] = (),
    ) -> Rollout:
        """Sample `count` answers to each prompt, by transformers' `generate` with its cache.

        Args:
            prompts: tokens of each.
            count: G; answers of one prompt stand side by side.
            new: the most tokens of an answer.
            seed: of the random numbers. The program's own random state stays as it is.
            greedy: the likeliest tokens instead.
            at_once: rows that are generated together.
            within: tokens are drawn from another policy's nucleus alone; the rollout keeps it as `allowed`.
            continuous: by transformers' continuous batching instead, where an answer that ends makes room for the next
                (`at_once` is not read then).
            stops: tokens that end a row as the end tokens do; the row is `finished` then. Not with `continuous`.

        Returns:
            B = len(prompts) * count rows.

        Raises:
            ConfigError: a prompt that is too long, or a nucleus with continuous batching.
        """
        self.check_lengths(prompts, new)
        if continuous and (within is not None or greedy or stops):
            raise ConfigError(
                "continuous batching samples from all tokens: leave it out where a nucleus, greedy or stops are"
            )
        ends = sorted({*self.ends, *stops})
        rows = [prompt for prompt in prompts for _ in range(count)]
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self.pad)
        mask = torch.zeros(len(rows), width)
        for row, prompt in enumerate(rows):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        devices = [self.device] if self.device.type == "cuda" else []
        answers, log_prob = torch.full((len(rows), new), self.pad, device=self.device), mask.new_zeros(len(rows), new)
        allowed = mask.new_zeros(len(rows), new if within else 0, self.vocabulary, dtype=torch.bool)
        with torch.random.fork_rng(devices), quiet(), self._clean_settings():
            torch.manual_seed(seed)
            sampled = continuous_batch(self, rows, new) if continuous else []
            for row, (drawn, found) in enumerate(sampled):
                answers[row, : len(drawn)], log_prob[row, : len(found)] = ids.new_tensor(drawn), mask.new_tensor(found)
            for start in range(0, 0 if continuous else len(rows), at_once):
                part = slice(start, start + at_once)
                tokens, logs, among = self._generate(ids[part], mask[part], new, greedy, within, ends)
                answers[part, : tokens.shape[1]], log_prob[part, : logs.shape[1]] = tokens, logs
                if among is not None:
                    allowed[part, : among.shape[1]] = among
        kept, finished = completion_mask(answers, ends)
        longest = int(kept.sum(-1).max())
        answers, kept, log_prob = answers[:, :longest], kept[:, :longest], log_prob[:, :longest]
        more = {"allowed": allowed[:, :longest]} if within else {}
        return Rollout(ids, mask, answers, kept, torch.where(kept != 0, log_prob, 0.0), finished, more)

    def _generate(
        self, ids: Tensor, mask: Tensor, new: int, greedy: bool, within: Nucleus | None, ends: list[int]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        follower = None if within is None else within.follow(ids, mask)
        record = _Record(self.temperature, follower)
        found = self.model.generate(
            input_ids=ids,
            attention_mask=mask.long(),
            logits_processor=[record],
            max_new_tokens=new,
            do_sample=not greedy,
            eos_token_id=ends,
            pad_token_id=self.pad,
            use_cache=True,
        )
        tokens = found[:, ids.shape[1] :]
        return tokens, record.finish(tokens), None if follower is None else follower.seen(tokens.shape[1])

    @contextlib.contextmanager
    def _clean_settings(self) -> Iterator[None]:
        """A model's folder may ask for top-k, top-p or penalties: they would sample from another distribution."""
        from transformers import GenerationConfig

        before = self._inner.generation_config
        self._inner.generation_config = GenerationConfig(top_k=0, top_p=1.0)
        try:
            yield
        finally:
            self._inner.generation_config = before

    def log_probs(self, rollout: Rollout, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each token of the answers, with gradient unless it is switched off.

        Args:
            rollout: B rows.
            entropy_gradient: whether the entropy has one too.

        Returns:
            (B, C) float32 each, in nats; 0 where masked. No more than `UNITS_AT_ONCE` logits are held at once.
        """
        ids = torch.cat([rollout.prompt_ids, rollout.completion_ids], 1)
        mask = torch.cat([rollout.prompt_mask, rollout.completion_mask], 1).long()
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions(mask), "use_cache": False}
        width = rollout.completion_ids.shape[1]
        kept = rollout.completion_mask != 0
        targets = rollout.completion_ids[kept]
        allowed = rollout.kept["allowed"][kept] if "allowed" in rollout.kept else None
        if self._plain_head is None:
            self._plain_head = self._has_plain_head()
        if self._plain_head:
            hidden = self._inner.base_model(**inputs).last_hidden_state[:, -width - 1 : -1]
            logs, entropies = self._of_hidden(hidden[kept], targets, entropy_gradient, allowed)
        else:
            logits = self.model(**inputs, logits_to_keep=width + 1).logits[:, -width - 1 : -1]
            logs, entropies = log_prob_and_entropy(logits[kept], targets, self.temperature, entropy_gradient, allowed)
        zeros = torch.zeros_like(rollout.completion_mask)
        return zeros.masked_scatter(kept, logs), zeros.masked_scatter(kept, entropies)

    def _of_hidden(
        self, hidden: Tensor, targets: Tensor, entropy_gradient: bool, allowed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Of (N, width) activations, a part of the rows after another; gradients compute a part's logits anew."""
        head = self._inner.get_output_embeddings()

        def part(rows: Tensor, wanted: Tensor, among: Tensor | None) -> tuple[Tensor, Tensor]:
            return log_prob_and_entropy(head(rows), wanted, self.temperature, entropy_gradient, among)

        size = max(1, UNITS_AT_ONCE // self.vocabulary)
        if len(targets) <= size:
            return part(hidden, targets, allowed)
        cuts = [slice(start, start + size) for start in range(0, len(targets), size)]
        found = [
            checkpoint(part, hidden[c], targets[c], None if allowed is None else allowed[c], use_reentrant=False)
            for c in cuts
        ]
        return torch.cat([logs for logs, _ in found]), torch.cat([entropies for _, entropies in found])

    @torch.no_grad()
    def _has_plain_head(self) -> bool:
        """Whether logits are the output embedding of the last activations, and nothing scales or caps them after."""
        head = self._inner.get_output_embeddings()
        if head is None or not hasattr(self._inner.base_model, "forward") or self._inner.base_model is self._inner:
            return False
        ids = torch.tensor([[self.pad, self.ends[0]]], device=self.device)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
        output = self._inner.base_model(**inputs)
        hidden = getattr(output, "last_hidden_state", None)
        if hidden is None:
            return False
        return torch.equal(head(hidden), self._inner(**inputs).logits)

    def save(self, folder: str | pathlib.Path) -> None:
        """Write model and tokenizer as transformers does, weights as safetensors; adapters are added to the weights."""
        model = self.model
        if hasattr(model, "merge_and_unload"):
            model = copy.deepcopy(model).merge_and_unload()
        with quiet():
            model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)


class _Record:
    """Divides logits by the temperature, and keeps the log-probability of what is drawn from them."""

    def __init__(self, temperature: float, follower: Follower | None = None) -> None:
        self._temperature, self._logits, self._found = temperature, torch.empty(0), list[Tensor]()
        self._follower = follower

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """By transformers, before each token; `input_ids` ends with what was drawn from the logits before."""
        if len(self._logits):
            self._take(input_ids[:, -1])
        self._logits = scores / self._temperature
        if self._follower is not None:
            self._logits = masked_logits(self._logits, self._follower.allowed(input_ids))
        return self._logits

    def _take(self, drawn: Tensor) -> None:
        picked = self._logits.gather(1, drawn.unsqueeze(1)).squeeze(1)
        self._found.append(picked - self._logits.logsumexp(-1))

    def finish(self, tokens: Tensor) -> Tensor:
        """(B, C) of the answers' tokens; on a GPU transformers notices the end late, and cuts tokens off again."""
        if len(self._found) < tokens.shape[1]:
            self._take(tokens[:, -1])
        return torch.stack(self._found[: tokens.shape[1]], 1)


def positions(mask: Tensor) -> Tensor:
    """Positions counted from the first real token: (B, L) of 0 and 1 -> (B, L) int64, 0 under padding."""
    return (mask.long().cumsum(-1) - 1).clamp(min=0)


def log_prob_and_entropy(
    logits: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    allowed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Of tokens under a softmax, float32, without the log-softmax of the whole vocabulary being kept.

    Args:
        logits: (N, V) of any dtype.
        targets: (N,) int64.
        temperature: that the logits are divided by.
        entropy_gradient: whether the entropy has a gradient.
        allowed: (N, V) bool, the tokens that could be drawn; None for all.

    Returns:
        (N,) each, in nats.
    """
    logits = logits.float()
    if temperature != 1:
        logits = logits / temperature
    if allowed is not None:
        logits = logits.masked_fill(~allowed, LOWEST)  # finite, so that the entropy is
    normaliser = logits.logsumexp(-1)
    log_prob = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - normaliser
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = normaliser - (logits * (logits - normaliser.unsqueeze(-1)).exp()).sum(-1)
    return log_prob, entropy


def joined(parts: Sequence[Rollout], pad: int) -> Rollout:
    """Rollouts one after another, prompts widened on the left and answers on the right."""
    prompts, answers = max(r.prompt_ids.shape[1] for r in parts), max(r.completion_ids.shape[1] for r in parts)

    def wide(values: Sequence[Tensor], left: bool, fill: float) -> Tensor:
        width = prompts if left else answers
        found = []
        for value in values:
            extra = value.new_full((len(value), width - value.shape[1], *value.shape[2:]), fill)
            found.append(torch.cat([extra, value] if left else [value, extra], 1))
        return torch.cat(found)

    return Rollout(
        wide([part.prompt_ids for part in parts], True, pad),
        wide([part.prompt_mask for part in parts], True, 0),
        wide([part.completion_ids for part in parts], False, pad),
        wide([part.completion_mask for part in parts], False, 0),
        wide([part.log_prob for part in parts], False, 0),
        torch.cat([part.finished for part in parts]),
        {name: wide([part.kept[name] for part in parts], False, 0) for name in parts[0].kept},
    )


def load_policy(
    folder: str | pathlib.Path, temperature: float = 1.0, device: str = "cpu", dtype: str = "float32", seed: int = 0
) -> LMPolicy:
    """A policy from a folder that transformers or `LMPolicy.save` wrote; arguments and errors as of `read_model`."""
    model, tokenizer = read_model(folder, device, dtype, seed)
    return LMPolicy(model, tokenizer, temperature)
