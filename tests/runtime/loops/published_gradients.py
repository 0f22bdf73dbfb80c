"""Loops as their authors publish them, whose point is what they do to gradients."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from tests.runtime.loop_device import numbers
from tests.runtime.loops.loop_run import Run


def network() -> nn.Sequential:
    """A small classifier."""
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3))


def loss_of(run: Run, model: nn.Module, number: int) -> torch.Tensor:
    """The loss of a batch of this rank."""
    loss: torch.Tensor = ((model(run.batch(number, 4, 6)) - 1.0) ** 2).mean()
    return loss


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that most of these loops use."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def projected_gradients(run: Run) -> None:
    """PCGrad: gradients of two tasks, each without what opposes the other."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        tasks = []
        for task in range(2):
            optimizer.zero_grad()
            output = model(run.batch(step, 4, 6))
            (output[:, task] - float(task)).pow(2).mean().backward()
            run.average(model)
            tasks.append([parameter.grad.clone() for parameter in model.parameters()])
        for parameter, first, second in zip(model.parameters(), *tasks, strict=True):
            along = (first * second).sum()
            if along < 0:
                first = first - along / second.pow(2).sum() * second
            parameter.grad = first + second
        optimizer.step()


def sharpness_aware(run: Run) -> None:
    """SAM: the step is taken with gradients from a point uphill."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        loss_of(run, model, step).backward()
        run.average(model)
        moves = []
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            for parameter in model.parameters():
                moves.append(parameter.grad * (0.05 / norm))
                parameter.add_(moves[-1])
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        run.see(norm)


def gradient_penalty(run: Run) -> None:
    """WGAN-GP: the norm of the gradient by the input is a part of the loss."""
    critic = run.build(lambda: nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)))
    optimizer = run.wrap(torch.optim.Adam(critic.parameters(), lr=0.01, betas=(0.5, 0.9)), critic)
    for step in range(run.steps):
        optimizer.zero_grad()
        between = run.batch(step, 4, 6).requires_grad_()
        score = critic(between)
        (slope,) = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True)
        (score.mean() + 10 * (slope.norm(dim=1) - 1).pow(2).mean()).backward()
        run.average(critic)
        optimizer.step()


def needless_graph(run: Run) -> None:
    """The graph that only some losses need is always made; norms are logged, and clipped, without it."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward(create_graph=True)
        run.average(model)
        run.see(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                run.see(parameter.grad.norm())
        optimizer.step()


def lazy_regularisation(run: Run) -> None:
    """StyleGAN's R1: a second backward pass with a penalty, every fourth step."""
    critic = run.build(lambda: nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)))
    optimizer = run.wrap(torch.optim.Adam(critic.parameters(), lr=0.01), critic)
    for step in range(run.steps):
        optimizer.zero_grad(set_to_none=True)
        real = run.batch(step, 4, 6).requires_grad_()
        functional.softplus(-critic(real)).mean().backward()
        if step % 4 == 0:
            (slope,) = torch.autograd.grad(critic(real).sum(), real, create_graph=True)
            slope.pow(2).sum(1).mean().mul(2.5).backward()
        run.average(critic)
        optimizer.step()


def meta_learning(run: Run) -> None:
    """First-order MAML: gradients from adapted copies are assigned to the model's parameters."""
    model = run.build(network)
    optimizer = run.wrap(torch.optim.Adam(model.parameters(), lr=0.01), model)
    for step in range(run.steps):
        fast = dict(model.named_parameters())
        for inner in range(2):
            loss = (
                (torch.func.functional_call(model, fast, run.batch(2 * step + inner, 4, 6)) - 1).pow(2).mean()
            )
            slopes = torch.autograd.grad(loss, list(fast.values()))
            fast = {n: p - 0.1 * g for (n, p), g in zip(fast.items(), slopes, strict=True)}
        loss = (torch.func.functional_call(model, fast, run.batch(step + 500, 4, 6)) - 1).pow(2).mean()
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        optimizer.zero_grad()
        for parameter, slope in zip(model.parameters(), slopes, strict=True):
            parameter.grad = slope
        run.average(model)
        optimizer.step()


def functional_gradients(run: Run) -> None:
    """Gradients by torch.func.grad, assigned, then clipped."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)

    def loss(parameters: dict[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = (torch.func.functional_call(model, parameters, batch) - 1).pow(2).mean()
        return found

    for step in range(run.steps):
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        slopes = torch.func.grad(loss)(parameters, run.batch(step, 4, 6))
        for name, parameter in model.named_parameters():
            parameter.grad = slopes[name]
        run.average(model)
        run.see(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
        optimizer.zero_grad()


def logging_on_one_rank(run: Run) -> None:
    """Rank 0 alone logs gradients; all ranks average the loss before they step."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss = loss_of(run, model, step)
        loss.backward()
        run.average(model)
        logged = loss.detach().clone()
        if run.rank == 0 and step % 2:
            run.see({n: float(p.grad.norm()) for n, p in model.named_parameters()}["0.weight"])
        dist.all_reduce(logged)
        optimizer.step()


def gradient_noise(run: Run) -> None:
    """Noise, the same on every rank, is added to gradients."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    generator = torch.Generator().manual_seed(0)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        for parameter in model.parameters():
            noise = numbers(parameter.shape, generator, parameter.dtype)
            parameter.grad.add_(noise, alpha=0.1 / (1 + step) ** 0.5)
        optimizer.step()


def trust_ratios(run: Run) -> None:
    """LARS: every gradient is scaled by its parameter's norm over its own."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is None:
                        continue
                    ratio = 0.1 * parameter.norm() / (parameter.grad.norm() + 1e-6)
                    parameter.grad.mul_(torch.where(parameter.norm() > 0, ratio, 1.0))
        optimizer.step()


def own_update(run: Run) -> None:
    """The loop updates weights itself and never calls step()."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        loss_of(run, model, step).backward()
        run.average(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
        optimizer.zero_grad()


def clipping_sometimes(run: Run) -> None:
    """Clips every third step only."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        if step % 3 == 0:
            run.see(nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1))
        optimizer.step()


def clamped_data(run: Run) -> None:
    """Clamps ``p.grad.data``, as code from before torch 0.4 does."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        for parameter in model.parameters():
            parameter.grad.data.clamp_(-0.02, 0.02)
        optimizer.step()


def adaptive_clipping(run: Run) -> None:
    """AGC: clips each unit's gradient by its weights' norm."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        for parameter in model.parameters():
            if parameter.ndim < 2:
                continue
            most = parameter.detach().norm(dim=1, keepdim=True).clamp(min=1e-3) * 0.05
            norm = parameter.grad.detach().norm(dim=1, keepdim=True)
            clipped = parameter.grad.detach() * (most / norm.clamp(min=1e-6))
            parameter.grad.detach().copy_(torch.where(norm > most, clipped, parameter.grad.detach()))
        optimizer.step()


def centralised(run: Run) -> None:
    """Gradient centralization: the mean over inputs is taken off every matrix's gradient."""
    model = run.build(network)
    optimizer = run.wrap(torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.grad.add_(-parameter.grad.mean(dim=1, keepdim=True))
        optimizer.step()


def decay_by_hand(run: Run) -> None:
    """Weight decay on matrices only, added to gradients before the step."""
    model = run.build(network)
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        for name, parameter in model.named_parameters():
            if name.endswith("weight"):
                parameter.grad = parameter.grad + 0.1 * parameter.data
        optimizer.step()


def signs(run: Run) -> None:
    """signSGD: only the sign of a gradient counts."""
    model = run.build(network)
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.01), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        for parameter in model.parameters():
            parameter.grad = torch.sign(parameter.grad)
        optimizer.step()


def cosine_similarity(run: Run) -> None:
    """Keeps the list of the last step's gradients, and compares this step's with them."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    last: list[torch.Tensor] = []
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        now = [parameter.grad for parameter in model.parameters()]
        if last:
            pairs = zip(now, last, strict=True)
            run.see([functional.cosine_similarity(a.flatten(), b.flatten(), dim=0) for a, b in pairs])
        last = now
        optimizer.step()


def gradients_as_vector(run: Run) -> None:
    """All gradients, and all parameters, as one vector."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        vector = nn.utils.parameters_to_vector([parameter.grad for parameter in model.parameters()])
        run.see(vector)
        optimizer.step()
        weights = nn.utils.parameters_to_vector(model.parameters())
        nn.utils.vector_to_parameters(weights * 0.999, model.parameters())


def tensor_hooks(run: Run) -> None:
    """A hook on a parameter halves its gradient; a hook on a module scales what flows back."""
    model = run.build(network)
    model[2].weight.register_hook(lambda gradient: gradient * 0.5)
    model[2].register_full_backward_hook(lambda _module, inputs, _outputs: (inputs[0] * 2,))
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        run.see([parameter.grad for parameter in model.parameters()])
        optimizer.step()


def skipping_large_steps(run: Run) -> None:
    """A step whose gradients are too large is left out."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
        run.see(norm)
        if norm > 0.6:
            continue
        optimizer.step()


GRADIENT_LOOPS = (
    projected_gradients,
    sharpness_aware,
    gradient_penalty,
    needless_graph,
    lazy_regularisation,
    meta_learning,
    functional_gradients,
    logging_on_one_rank,
    gradient_noise,
    trust_ratios,
    own_update,
    clipping_sometimes,
    clamped_data,
    adaptive_clipping,
    centralised,
    decay_by_hand,
    signs,
    cosine_similarity,
    gradients_as_vector,
    tensor_hooks,
    skipping_large_steps,
)
