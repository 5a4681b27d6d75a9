"""What is trained is what was sampled: padding, positions, temperature, ends, and models that can't be read."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest
import torch

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.llm import LMPolicy, load_policy, policy
from surefoot.llm.characters import character_policy
from surefoot.llm.policy import Rollout, joined, log_prob_and_entropy, positions
from surefoot.llm.supervised import answered

PROMPTS = ["1+2=", "123+456=", "9=", "77+1="]


def tiny(rotary: bool = False, temperature: float = 1.0, seed: int = 0) -> LMPolicy:
    return character_policy("0123456789+=", width=32, context=24, rotary=rotary, temperature=temperature, seed=seed)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("rotary", [False, True])
def test_log_probabilities_of_sampling_are_found_again(rotary: bool, temperature: float) -> None:
    model = tiny(rotary, temperature)
    rollout = model.generate(model.encode(PROMPTS), 4, 8, seed=1)
    log_prob, entropy = model.log_probs(rollout)
    assert float((log_prob - rollout.log_prob).abs().max().detach()) < 1e-5
    assert len(set(rollout.completion_mask.sum(-1).tolist())) > 1
    assert bool(((entropy >= 0) & (entropy <= 2.65)).all())  # log 14
    alone = [model.generate([ids], 1, 8, seed=1, greedy=True).answers()[0] for ids in model.encode(PROMPTS)]
    assert model.generate(model.encode(PROMPTS), 1, 8, seed=1, greedy=True).answers() == alone


def test_continuous_batching_samples_the_same_distribution_repeatably() -> None:
    model = tiny(temperature=0.7)
    prompts = model.encode(PROMPTS)
    rollout = model.generate(prompts, 3, 8, seed=1, continuous=True)
    log_prob, _ = model.log_probs(rollout)
    assert float((log_prob - rollout.log_prob).abs().max().detach()) < 1e-5
    assert [list(row[row != model.pad]) for row in rollout.prompt_ids[::3]] == prompts
    again = model.generate(prompts, 3, 8, seed=1, continuous=True)
    assert torch.equal(again.completion_ids, rollout.completion_ids)
    with pytest.raises(ConfigError, match="continuous batching samples from all tokens"):
        model.generate(prompts, 1, 8, seed=1, continuous=True, greedy=True)


@pytest.mark.parametrize("rotary", [False, True])
def test_more_padding_and_rubbish_under_the_mask_change_nothing(rotary: bool) -> None:
    model = tiny(rotary)
    rollout = model.generate(model.encode(PROMPTS), 2, 6, seed=2)
    expected, _ = model.log_probs(rollout)
    for extra in (1, 5):
        rows = len(rollout.finished)
        wide = joined([rollout, answered(model, [[3] * (rollout.prompt_ids.shape[1] + extra)], [[3]])], model.pad)
        spoilt = torch.where(wide.prompt_mask != 0, wide.prompt_ids, 7)
        beyond = torch.where(wide.completion_mask != 0, wide.completion_ids, 7)
        there = Rollout(spoilt, wide.prompt_mask, beyond, wide.completion_mask, wide.log_prob, wide.finished)
        found, _ = model.log_probs(there)
        torch.testing.assert_close(found[:rows, : expected.shape[1]], expected, rtol=0, atol=1e-5)


def test_without_positions_of_its_own_a_padded_row_of_learned_positions_would_be_wrong() -> None:
    model = tiny()
    rollout = model.generate(model.encode(PROMPTS), 1, 6, seed=3)
    ids = torch.cat([rollout.prompt_ids, rollout.completion_ids], 1)
    mask = torch.cat([rollout.prompt_mask, rollout.completion_mask], 1).long()
    width = rollout.completion_ids.shape[1]
    with torch.no_grad():
        logits = model.model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1]
    wrong = log_prob_and_entropy(logits.flatten(0, 1), rollout.completion_ids.flatten())[0].view_as(rollout.log_prob)
    gaps = ((wrong - rollout.log_prob) * rollout.completion_mask).abs().amax(1)
    assert float(gaps[1]) < 1e-5  # the longest prompt has no padding
    assert float(gaps[2]) > 1e-2
    assert positions(torch.tensor([[0, 0, 1, 1, 1]])).tolist() == [[0, 0, 0, 1, 2]]


def test_a_seed_gives_the_same_answers_and_leaves_the_programs_random_state() -> None:
    model = tiny()
    ids = model.encode(PROMPTS)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second = model.generate(ids, 2, 6, seed=9), model.generate(ids, 2, 6, seed=9)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.completion_ids, second.completion_ids)
    assert not torch.equal(first.completion_ids, model.generate(ids, 2, 6, seed=10).completion_ids)


def test_a_models_own_generation_settings_do_not_truncate_the_distribution() -> None:
    model = tiny()
    settings = model.model.generation_config
    settings.top_k, settings.temperature, settings.repetition_penalty = 1, 0.1, 5.0
    rollout = model.generate(model.encode(PROMPTS), 8, 6, seed=4)
    log_prob, _ = model.log_probs(rollout)
    assert float((log_prob - rollout.log_prob).abs().max().detach()) < 1e-5
    assert len({tuple(answer) for answer in rollout.answers()}) > 8  # top-k of 1 would give one for each prompt
    assert model.model.generation_config is settings


def test_the_end_token_is_an_action_and_texts_are_without_it() -> None:
    model = tiny()
    rollout = model.generate(model.encode(["1+1="]), 64, 12, seed=0)
    for row, text in enumerate(model.decode(rollout)):
        length = int(rollout.completion_mask[row].sum())
        ended = bool(rollout.finished[row])
        assert (int(rollout.completion_ids[row, length - 1]) == model.tokenizer.eos_token_id) == ended
        assert len(text.replace("<pad>", "")) <= length - ended
        assert ended or length == 12
    assert bool(rollout.finished.any())


def test_logits_in_parts_give_the_same_numbers_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    rollout = model.generate(model.encode(PROMPTS), 4, 6, seed=2)
    parameters = list(model.model.parameters())

    def found() -> tuple[torch.Tensor, ...]:
        log_prob, entropy = model.log_probs(rollout, entropy_gradient=True)
        return log_prob, entropy, *torch.autograd.grad((log_prob - entropy).sum(), parameters, allow_unused=True)

    whole = found()
    monkeypatch.setattr(policy, "UNITS_AT_ONCE", 50)
    parts = found()
    model._plain_head = False  # as for models that scale or cap their logits
    for values in (parts, found()):
        for value, expected in zip(values, whole, strict=True):
            if expected is not None:
                torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


def test_entropy_and_log_probability_are_those_of_the_distribution() -> None:
    logits = torch.tensor([[0.1, 0.6, 0.3]]).log() + 5
    log_prob, entropy = log_prob_and_entropy(logits, torch.tensor([1]))
    assert float(log_prob) == pytest.approx(-0.5108256, abs=1e-6)
    assert float(entropy) == pytest.approx(0.8979457, abs=1e-6)
    cool = log_prob_and_entropy(logits, torch.tensor([1]), 0.5)[0]
    assert float(cool.exp()) == pytest.approx(0.36 / 0.46, abs=1e-6)


PEAK = """
import resource, torch, transformers
from surefoot.llm.characters import character_tokenizer
from surefoot.llm.policy import LMPolicy, Rollout
config = transformers.GPT2Config(vocab_size=150_000, n_embd=16, n_layer=1, n_head=1, n_positions=80)
policy = LMPolicy(transformers.AutoModelForCausalLM.from_config(config), character_tokenizer("01"))
ids, ones = torch.randint(150_000, (16, 64)), torch.ones(16, 64)
rollout = Rollout(ids[:, :4], ones[:, :4], ids, ones, ones, torch.ones(16, dtype=torch.bool))
policy.log_probs(rollout.rows(slice(0, 1)))[0].sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
policy.log_probs(rollout)[0].sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
def test_a_large_vocabulary_takes_the_memory_of_a_part_of_its_logits() -> None:
    """1,024 tokens of 150,000 logits are 585 MB; the step's own parts and its gradients are a few times 64 MB."""
    found = subprocess.run([sys.executable, "-P", "-c", PEAK], capture_output=True, text=True, check=True)
    assert float(found.stdout) < 500


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
def test_adapters_of_peft_are_trained_alone_and_the_reference_is_the_model_without_what_they_learn() -> None:
    from peft import LoraConfig, get_peft_model

    from surefoot.llm import Prompt, TrainConfig, method, train

    model = tiny(True)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    adapted = LMPolicy(get_peft_model(model.model, lora), model.tokenizer, 0.7)
    before = {name: value.detach().clone() for name, value in adapted.model.named_parameters()}

    def sevens(completions: list[str], **columns: object) -> list[float]:
        return [text.count("7") / 4 for text in completions]

    config = TrainConfig(steps=2, prompts_per_step=4, group=4, max_new_tokens=4, learning_rate=1e-2)
    lines = train(adapted, [Prompt(text) for text in PROMPTS], sevens, method("grpo"), config)
    moved = {name for name, value in adapted.model.named_parameters() if not torch.equal(value, before[name])}
    assert moved
    assert all("lora" in name for name in moved)
    assert adapted._plain_head
    assert lines[0]["gap_max"] < 1e-5
    assert lines[0]["reference_kl"] < 1e-8 < lines[1]["reference_kl"]


# -- models and prompts that can't be used ---------------------------------------------------------------------


def test_a_model_comes_back_from_its_folder_and_damage_is_named(tmp_path: pathlib.Path) -> None:
    model = tiny(True)
    model.save(tmp_path)
    rollout = model.generate(model.encode(PROMPTS), 1, 6, seed=0)
    again = load_policy(tmp_path)
    torch.testing.assert_close(again.log_probs(rollout)[0], model.log_probs(rollout)[0], rtol=0, atol=0)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1000])
    with pytest.raises(CheckpointError, match=r"the model can't be read.*restore it from a copy"):
        load_policy(tmp_path)
    weights.write_bytes(whole)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match=r"weights of model\.layers\.2\..* are missing"):
        load_policy(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="the model can't be read"):
        load_policy(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer \(tokenizer\.json\)"):
        load_policy(tmp_path)
    with pytest.raises(CheckpointError, match=r"no config\.json is there"):
        load_policy(tmp_path / "elsewhere")


def test_a_pickle_is_not_read_and_a_config_alone_gives_random_weights(tmp_path: pathlib.Path) -> None:
    def same(one: LMPolicy, other: LMPolicy) -> bool:
        pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
        return all(torch.equal(first, second) for first, second in pairs)

    tiny(seed=5).save(tmp_path)
    saved, named = load_policy(tmp_path), load_policy(tmp_path / "config.json")  # the config, and not the weights
    (tmp_path / "model.safetensors").unlink()
    first, second = (load_policy(tmp_path, seed=seed) for seed in (0, 1))
    assert not same(first, second)
    assert same(first, named)
    assert not same(saved, named)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="convert them to safetensors"):
        load_policy(tmp_path)


def test_a_folder_of_adapters_does_not_name_another_model(tmp_path: pathlib.Path) -> None:
    tiny().save(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/elsewhere"}))
    with pytest.raises(CheckpointError, match=r"adapter_config\.json names another model, and weights are read"):
        load_policy(tmp_path)
    load_policy(tmp_path / "config.json")  # random weights, whatever lies beside it


def test_code_in_the_folder_of_a_model_is_not_executed(tmp_path: pathlib.Path) -> None:
    tiny().save(tmp_path)
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nclass Own: pass\n")
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    load_policy(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "own"}))
    with pytest.raises(CheckpointError, match="custom code"):
        load_policy(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_a_chat_template_reaches_nothing_outside_of_its_sandbox(tmp_path: pathlib.Path) -> None:
    policy, mark = tiny(), tmp_path / "executed"
    for reach in (
        f"cycler.__init__.__globals__.os.system('touch {mark}')",
        "''.__class__.__mro__",
        "raise_exception('no')",
    ):
        policy.tokenizer.chat_template = "{{ " + reach + " }}"
        with pytest.raises(ConfigError, match=r"prompt 1: the tokenizer's chat template can't be rendered"):
            policy.encode(["3", [{"role": "user", "content": "3"}]])
    assert not mark.exists()


@pytest.mark.parametrize("named", ["../outside.safetensors", "/dev/zero", "gone.safetensors"])
def test_parts_of_a_model_are_files_beside_their_list(named: str, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "model"
    policy = tiny()
    policy.save(folder)
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    index = folder / "model.safetensors.index.json"

    def listed(name: str) -> str:
        return json.dumps({"metadata": {}, "weight_map": {key: name for key, _ in policy.model.named_parameters()}})

    index.write_text(listed(named))
    with pytest.raises(
        CheckpointError, match=rf"index\.json: names '{named}', and a model's parts are files beside it"
    ):
        load_policy(folder)
    index.write_text(listed("part.safetensors"))
    (tmp_path / "outside.safetensors").rename(folder / "part.safetensors")
    for one, other in zip(load_policy(folder).model.parameters(), policy.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_prompt_longer_than_the_context_is_named() -> None:
    model = tiny()
    with pytest.raises(ConfigError, match="prompt 1 has 20 tokens, and with max_new_tokens=8 that is more than"):
        model.generate(model.encode(["1=", "1" * 20]), 1, 8, seed=0)
    with pytest.raises(ConfigError, match="prompt 0 has no tokens"):
        model.encode([""])
    with pytest.raises(ConfigError, match="no chat template"):
        model.encode([[{"role": "user", "content": "1"}]])
    with pytest.raises(ConfigError, match="temperature=0 must be above 0"):
        LMPolicy(model.model, model.tokenizer, 0)
