"""Accuracy of captured profiles: compute times in the profiles of six models, beside plain iterations.

    python -m benchmarks capture [--models A ...] [--iterations N] [--json OUT]

Every model trains in this process, on this machine's CPU. Three kinds of iterations take turns: with the
capture's hooks, plain ones, and, for comparison, under torch.profiler. Needs the transformers package; models
are built from configurations, and nothing is downloaded.
"""

import gc
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median

import numpy as np
import torch
import transformers
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.harness.conditions import study_parser, write_json
from pace.runtime.capture.recorder import Recorder
from pace.runtime.capture.window import middle_half
from pace.runtime.profiler import Capture

Loss = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model's numbers; errors and overheads are relative to the plain iteration.

    Attributes
    ----------
    in_operators
        The sum of the operators' own times under torch.profiler: what a profile made from its
        operators would say.
    medians_error, operator_medians_error
        Error of the sum of the ops' medians over the same iterations, to compare with that of means.
    """

    model: str
    parameters: int
    ops: int
    plain_s: float
    captured_s: float
    error: float
    overhead: float
    operator_error: float
    operator_overhead: float
    profiler_overhead: float
    in_operators: float
    medians_error: float
    operator_medians_error: float


def convolutional() -> tuple[nn.Module, Loss]:
    """Build a VGG-like network for 32 x 32 images."""
    widths = [3, 64, 64, 128, 128, 256, 256]
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise(widths)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2)] if number % 2 else []
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 16, 512), nn.ReLU(), nn.Linear(512, 10))
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    return model, lambda: nn.functional.cross_entropy(model(images), labels)


def resnet() -> tuple[nn.Module, Loss]:
    """Build a ResNet-50 (Hugging Face), 64 x 64 images."""
    config = transformers.ResNetConfig(num_labels=1000)  # type: ignore[call-arg]  # every configuration takes it
    model = transformers.ResNetForImageClassification(config)
    images, labels = torch.randn(8, 3, 64, 64), torch.randint(0, 1000, (8,))
    return model, lambda: model(pixel_values=images, labels=labels).loss


def gpt2() -> tuple[nn.Module, Loss]:
    """Build a GPT-2 of six layers, width 384."""
    config = transformers.GPT2Config(vocab_size=8000, n_positions=128, n_embd=384, n_layer=6, n_head=6)
    model = transformers.GPT2LMHeadModel(config)
    tokens = torch.randint(0, 8000, (4, 64))
    return model, lambda: model(input_ids=tokens, labels=tokens).loss


def bert() -> tuple[nn.Module, Loss]:
    """Build a BERT of six layers, width 384."""
    config = transformers.BertConfig(
        vocab_size=8000, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536
    )
    model = transformers.BertForMaskedLM(config)
    tokens = torch.randint(0, 8000, (4, 64))
    return model, lambda: model(input_ids=tokens, labels=tokens).loss


def t5() -> tuple[nn.Module, Loss]:
    """Build a T5 of four encoder and four decoder layers, width 256."""
    config = transformers.T5Config(
        vocab_size=8000, d_model=256, d_kv=32, d_ff=1024, num_layers=4, num_heads=8
    )
    config.decoder_start_token_id = 0
    model = transformers.T5ForConditionalGeneration(config)
    tokens = torch.randint(0, 8000, (4, 48))
    return model, lambda: model(input_ids=tokens, labels=tokens).loss


class Seq2Seq(nn.Module):
    """Two LSTMs, as in Sutskever et al. 2014."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4000, 256)
        self.encoder = nn.LSTM(256, 256, num_layers=2, batch_first=True)
        self.decoder = nn.LSTM(256, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, 4000)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the logits of every target position."""
        _, state = self.encoder(self.embedding(source))
        logits: torch.Tensor = self.head(self.decoder(self.embedding(target), state)[0])
        return logits


def seq2seq() -> tuple[nn.Module, Loss]:
    """Build an encoder and a decoder of two LSTM layers."""
    model = Seq2Seq()
    tokens = torch.randint(0, 4000, (16, 24))
    return model, lambda: nn.functional.cross_entropy(model(tokens, tokens).flatten(0, 1), tokens.flatten())


MODELS = {
    "convolutional": convolutional,
    "ResNet-50": resnet,
    "GPT-2": gpt2,
    "BERT": bert,
    "T5": t5,
    "Seq2Seq": seq2seq,
}


def measure(name: str, build: Callable[[], tuple[nn.Module, Loss]], iterations: int) -> Row:
    """Capture one model at both granularities and under torch.profiler."""
    torch.manual_seed(0)
    gc.collect()
    model, loss = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    reports = []
    for granularity in ("module", "operator"):
        with Capture(model, optimizer, iterations=iterations, granularity=granularity) as capture:
            while not capture.finished:
                step()
                capture.step()
        reports.append((capture.report, *of_medians(capture._recorder)))
    (report, ops, medians_s), (operator_report, _, operator_medians_s) = reports
    profiler_s, in_operators_s, plain_s = under_torch_profiler(step, iterations)
    return Row(
        model=name,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        ops=ops,
        plain_s=report.plain_iteration_s,
        captured_s=report.profile_s,
        error=report.error,
        overhead=report.overhead,
        operator_error=operator_report.error,
        operator_overhead=operator_report.overhead,
        profiler_overhead=profiler_s / plain_s - 1,
        in_operators=in_operators_s / plain_s - 1,
        medians_error=medians_s / report.plain_iteration_s - 1,
        operator_medians_error=operator_medians_s / operator_report.plain_iteration_s - 1,
    )


def of_medians(recorder: Recorder) -> tuple[int, float]:
    """Return how many ops a capture has, and their medians added up."""
    window, intervals_s, _ = recorder._measurement()
    ops = [intervals_s[:, list(op.intervals)].sum(axis=1) * op.share for op in window.ops]
    return len(ops), sum(float(np.median(durations)) for durations in ops)


def under_torch_profiler(step: Callable[[], None], iterations: int) -> tuple[float, float, float]:
    """Return an iteration's time under torch.profiler, the part of it in operators, and a plain one's."""
    profiled, inside, plain = [], [], []
    for number in range(iterations + 1):
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            started = time.perf_counter()
            step()
            ended = time.perf_counter()
        operators = sum(event.self_cpu_time_total for event in recorded.key_averages()) * 1e-6
        before = time.perf_counter()
        step()
        after = time.perf_counter()
        if number:  # the first sets the profiler up
            profiled.append(ended - started)
            inside.append(operators)
            plain.append(after - before)
    return typical(profiled), typical(inside), typical(plain)


def typical(seconds: list[float]) -> float:
    """Return the mean of the middle half, as the capture does."""
    array = np.array(seconds)
    return float(array[middle_half(array)].mean())


def table(rows: list[Row]) -> str:
    """Lay the rows out as Markdown."""
    lines = [
        "| model | parameters | ops | plain iteration | profile | error | capture costs "
        "| of medians | operator level: error | costs | of medians | torch.profiler costs "
        "| its operators' own times |",
        "| --- |" + " ---: |" * 12,
    ]
    lines += [
        f"| {row.model} | {row.parameters / 1e6:.1f} M | {row.ops} | {row.plain_s * 1e3:.1f} ms "
        f"| {row.captured_s * 1e3:.1f} ms | {row.error:+.1%} | {row.overhead:+.1%} "
        f"| {row.medians_error:+.1%} | {row.operator_error:+.1%} | {row.operator_overhead:+.1%} "
        f"| {row.operator_medians_error:+.1%} "
        f"| {row.profiler_overhead:+.1%} | {row.in_operators:+.1%} |"
        for row in rows
    ]
    errors = [abs(row.error) for row in rows]
    lines += ["", f"Error of the profile: at most {max(errors):.1%}, median {median(errors):.1%}."]
    return "\n".join(lines)


def main() -> None:
    """Measure every model and print the table."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_argument(
        "--models",
        nargs="+",
        choices=MODELS,
        default=list(MODELS),
        metavar="A",
        help="models to capture (default: all)",
    )
    parser.add_number("--iterations", 20, "number of iterations to capture")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in arguments.models:
        rows.append(measure(name, MODELS[name], arguments.iterations))
        print(f"{name}: {rows[-1].error:+.1%}", flush=True)
    machine = f"{platform.machine()}, 1 of {torch.multiprocessing.cpu_count()} cores"
    print(f"\ntorch {torch.__version__}, transformers {transformers.__version__}, {machine}\n\n{table(rows)}")
    write_json(arguments.json, {"torch": torch.__version__, "rows": [asdict(row) for row in rows]})
