"""Capture of Hugging Face models, built from a configuration: random weights, nothing is downloaded."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import Profile, fingerprint
from pace.runtime.profiler import Capture

transformers = pytest.importorskip("transformers")

TOKENS = torch.randint(2, 50, (2, 8))


def _gpt2() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config), {"input_ids": TOKENS, "labels": TOKENS}


def _bert() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    return transformers.BertForMaskedLM(config), {"input_ids": TOKENS, "labels": TOKENS}


def _t5() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config), {"input_ids": TOKENS, "labels": TOKENS}


def _resnet() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], num_labels=3, layer_type="basic"
    )
    model = transformers.ResNetForImageClassification(config)
    return model, {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 2])}


def _captured(model: nn.Module, inputs: dict[str, Any]) -> Profile:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with Capture(model, optimizer, iterations=2, warmup=1) as capture:
        while not capture.finished:
            optimizer.zero_grad()
            model(**inputs).loss.backward()
            optimizer.step()
            capture.step()
    assert capture.report.num_dropped == 0
    allreduce = AffineAllReduce(latency_s=1e-3, seconds_per_byte=1e-9)
    return capture.profile(type(model).__name__, workers=2, allreduce=allreduce)


@pytest.mark.parametrize("build", [_gpt2, _bert, _t5, _resnet])
def test_every_parameter_is_sent_and_needed(
    build: Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]],
) -> None:
    """A profile that fits the model; each gradient's update stands in front of what uses the parameter."""
    model, inputs = build()
    profile = _captured(model, inputs)
    parameters = [(name, p.numel() * p.element_size(), "float32") for name, p in model.named_parameters()]
    assert profile.fingerprint == fingerprint(parameters, 2)
    unused = set(profile.metadata["unused_parameters"])
    needed_by = {name: op.name for op in profile.ops for name in op.waits_for}
    assert needed_by.keys() == {name for name, _, _ in parameters} - unused
    assert "update/rest" not in needed_by.values()
    assert all(gradient.producer.startswith("bwd/") for gradient in profile.gradients)
    assert profile.timing.compute_s == pytest.approx(sum(op.duration_s for op in profile.ops))


def test_tied_weights_of_gpt2() -> None:
    """The token embedding is the head as well: ready last, needed first."""
    model, inputs = _gpt2()
    profile = _captured(model, inputs)
    names = [gradient.name for gradient in profile.gradients]
    assert "lm_head.weight" not in names
    producer = {gradient.name: gradient.producer for gradient in profile.gradients}
    assert producer["transformer.wte.weight"] == "bwd/transformer.wte"
    waits = {name: op.name for op in profile.ops for name in op.waits_for}
    assert waits["transformer.wte.weight"] == "update/transformer.wte"
    assert waits["transformer.h.1.mlp.c_fc.weight"] == "update/transformer.h.1.mlp.c_fc"


def test_t5_shares_its_embedding_between_encoder_decoder_and_head() -> None:
    """One gradient; the encoder's look-up needs it first, the embedding's backward op completes it."""
    model, inputs = _t5()
    profile = _captured(model, inputs)
    waits = {name: op.name for op in profile.ops for name in op.waits_for}
    position = {op.name: number for number, op in enumerate(profile.ops)}
    shared = [name for name in waits if "shared" in name]
    assert shared == ["shared.weight"]
    others = [position[op] for name, op in waits.items() if name != "shared.weight"]
    assert position[waits["shared.weight"]] < min(others)
    last = max(position[gradient.producer] for gradient in profile.gradients)
    assert position[{g.name: g.producer for g in profile.gradients}["shared.weight"]] == last
