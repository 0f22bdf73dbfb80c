"""Loops as their authors publish them, whose point is the model: experts, ties, parametrizations."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.runtime.loops.loop_run import Run
from tests.runtime.loops.published_gradients import loss_of, network, sgd


class _Experts(nn.Module):
    """A batch goes to the expert that its gate prefers; other experts get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.gate(inputs.mean(0)).softmax(0).max(0)
        output: torch.Tensor = self.experts[int(chosen)](inputs) * weight
        return output


class _TiedLanguage(nn.Module):
    """A recurrent language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.memory = nn.GRU(6, 6, batch_first=True)
        self.head = nn.Linear(6, 11)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.memory(self.embed(tokens))[0])
        return scores


class _LayerDrop(nn.Module):
    """Layers that a batch may skip."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, hidden: torch.Tensor, kept: list[bool]) -> torch.Tensor:
        for layer, keep in zip(self.layers, kept, strict=True):
            hidden = hidden + torch.tanh(layer(hidden)) if keep else hidden
        return hidden


class _Heads(nn.Module):
    """One trunk and a head for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 8)
        self.heads = nn.ModuleDict({task: nn.Linear(8, 2) for task in "abc"})

    def forward(self, inputs: torch.Tensor, task: str) -> torch.Tensor:
        output: torch.Tensor = self.heads[task](torch.relu(self.trunk(inputs)))
        return output


class _Deep(nn.Module):
    """Recomputes one block as often as a batch wants."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.tail = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh())

    def forward(self, hidden: torch.Tensor, depth: int) -> torch.Tensor:
        hidden = self.first(hidden)
        for _ in range(depth):
            hidden = checkpoint(self.block, hidden, use_reentrant=True)
        output: torch.Tensor = checkpoint_sequential(self.tail, 2, hidden, use_reentrant=True)
        return output


class _Observed(nn.Module):
    """Keeps a range for each row of the weight, as quantization does; the first batch resizes it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("largest", torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Clip the weight to the range that was seen."""
        weight = self.layer.weight
        with torch.no_grad():
            self.largest.resize_(len(weight)).copy_(weight.abs().amax(1))
        return inputs @ (weight / self.largest[:, None]).T


def experts(run: Run) -> None:
    """Mixture of experts, every rank with a router's choice of its own, and clipping."""
    model = run.build(_Experts)
    optimizer = run.wrap(torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        run.see(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        run.see([parameter.grad is None for parameter in model.parameters()])
        optimizer.step()


def tied_embeddings(run: Run) -> None:
    """A language model with tied embeddings."""
    model = run.build(_TiedLanguage)
    optimizer = run.wrap(torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4), model)
    for step in range(run.steps):
        tokens = (run.batch(step, 3, 5) * 3).long().remainder(11)
        scores = model(tokens)
        loss = functional.cross_entropy(scores[:, :-1].reshape(-1, 11), tokens[:, 1:].reshape(-1))
        model.zero_grad()
        loss.backward()
        run.average(model)
        optimizer.step()


def layer_drop(run: Run) -> None:
    """Layers skipped at random, others on every rank; sometimes by all of them."""
    model = run.build(_LayerDrop)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        kept = [bool(draw > 0) for draw in run.batch(step + 100, 4)]
        kept[0] = True
        optimizer.zero_grad()
        (model(run.batch(step, 4, 6), kept) - 1).pow(2).mean().backward()
        run.average(model)
        optimizer.step()


def changing_heads(run: Run) -> None:
    """Every step trains another head; the others are left alone."""
    model = run.build(_Heads)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        model(run.batch(step, 4, 6), "abc"[step % 3]).pow(2).mean().backward()
        run.average(model)
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        optimizer.step()


def heads_by_rank(run: Run) -> None:
    """Ranks train different heads in the same step."""
    model = run.build(_Heads)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        model(run.batch(step, 4, 6), "abc"[(step + run.rank) % 3]).pow(2).mean().backward()
        run.average(model)
        run.see(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()


def weight_normalisation(run: Run) -> None:
    """Parametrized weights: what trains is the direction and the length."""

    def make() -> nn.Module:
        model = network()
        parametrizations.weight_norm(model[0])
        parametrizations.weight_norm(model[2])
        return model

    model = run.build(make)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        optimizer.step()
        run.see(model[0].weight)


def spectral_normalisation(run: Run) -> None:
    """A critic with spectral norms, evaluated between steps."""

    def make() -> nn.Module:
        return nn.Sequential(
            parametrizations.spectral_norm(nn.Linear(6, 8)),
            nn.Tanh(),
            parametrizations.spectral_norm(nn.Linear(8, 1)),
        )

    model = run.build(make)
    optimizer = run.wrap(torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4), model)
    for step in range(run.steps):
        model.train()
        optimizer.zero_grad()
        model(run.batch(step, 4, 6)).mean().backward()
        run.average(model)
        optimizer.step()
        model.eval()
        with torch.inference_mode():
            run.see(model(torch.ones(1, 6, dtype=torch.float64)))


def channels_last(run: Run) -> None:
    """Convolutions in channels_last and a fused optimizer."""

    def make() -> nn.Module:
        layers = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 2), nn.Flatten(), nn.Linear(8, 3)
        )
        for layer in layers:
            if isinstance(layer, nn.Conv2d):
                layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)
        return layers

    model = run.build(make)
    optimizer = run.wrap(torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4, fused=True), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        images = run.batch(step, 2, 3, 5, 5).contiguous(memory_format=torch.channels_last)
        model(images).pow(2).mean().backward()
        run.average(model)
        optimizer.step()


def truncated_back_propagation(run: Run) -> None:
    """A backward pass after every few tokens, one step at the end of the text."""
    cell = run.build(lambda: nn.GRUCell(4, 6))
    optimizer = run.wrap(torch.optim.Adam(cell.parameters(), lr=0.01, eps=1e-4), cell)
    for step in range(run.steps):
        optimizer.zero_grad()
        hidden = torch.zeros(2, 6, dtype=torch.float64)
        for chunk in range(3 if step % 3 else 2):
            hidden = hidden.detach()
            for token in run.batch(10 * step + chunk, 3, 2, 4):
                hidden = cell(token, hidden)
            (hidden - 1).pow(2).mean().backward()
        run.average(cell)
        nn.utils.clip_grad_norm_(cell.parameters(), 0.25)
        optimizer.step()


def varying_depth(run: Run) -> None:
    """A reentrant checkpoint of a shared block, as deep as the batch says, on every rank another depth."""
    model = run.build(_Deep)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        depth = (step + run.rank) % 4
        model(run.batch(step, 4, 6).requires_grad_(), depth).pow(2).mean().backward()
        run.average(model)
        optimizer.step()


def mean_teacher(run: Run) -> None:
    """A teacher that follows the student by a moving average of its parameters."""
    student, teacher = run.build(network), run.build(network)
    teacher.requires_grad_(False)
    teacher.load_state_dict(student.state_dict())
    optimizer = run.wrap(sgd(student), student)
    for step in range(run.steps):
        inputs = run.batch(step, 4, 6)
        loss = (student(inputs) - teacher(inputs + 0.1)).pow(2).mean() + student(inputs).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        run.average(student)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)


def two_halves(run: Run) -> None:
    """Encoder and decoder of one model have an optimizer and a wrapper each."""

    def make() -> nn.ModuleDict:
        return nn.ModuleDict({"encoder": nn.Linear(6, 4), "decoder": nn.Linear(4, 6)})

    model = run.build(make)
    encoder, decoder = model["encoder"], model["decoder"]
    optimizers = [
        run.wrap(torch.optim.Adam(encoder.parameters(), lr=0.01, eps=1e-4), encoder),
        run.wrap(sgd(decoder), decoder),
    ]
    for step in range(run.steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        inputs = run.batch(step, 4, 6)
        (decoder(torch.tanh(encoder(inputs))) - inputs).pow(2).mean().backward()
        run.average(model)
        run.see(nn.utils.clip_grad_norm_(model.parameters(), 0.3))
        optimizers[0].step()
        if step % 2:
            optimizers[1].step()


def by_layer(run: Run) -> None:
    """Layers thaw one after another, from the last to the first, and freeze again at the end."""
    model = run.build(network)
    optimizer = run.wrap(torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4, weight_decay=0.01), model)
    layers: list[nn.Module] = [model[4], model[2], model[0]]

    def thaw() -> Iterator[int]:
        for step in range(run.steps):
            for number, layer in enumerate(layers):
                layer.requires_grad_(number <= step // 2 and (number < 2 or step < run.steps - 2))
            yield step

    for step in thaw():
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        optimizer.step()


def resized_buffer(run: Run) -> None:
    """A model whose forward pass resizes a buffer."""
    model = run.build(_Observed)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        optimizer.step()


MODEL_LOOPS = (
    experts,
    tied_embeddings,
    layer_drop,
    changing_heads,
    heads_by_rank,
    weight_normalisation,
    spectral_normalisation,
    channels_last,
    truncated_back_propagation,
    varying_depth,
    mean_teacher,
    two_halves,
    by_layer,
    resized_buffer,
)
