"""Loops as their authors publish them in which networks train against one another."""

import torch
from torch import nn
from torch.nn import functional

from tests.runtime.loops.loop_run import Run
from tests.runtime.loops.published_gradients import sgd


class _Reverse(torch.autograd.Function):
    """Gradient reversal, of domain-adversarial training."""

    @staticmethod
    def forward(_context: object, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.view_as(hidden)

    @staticmethod
    def backward(_context: object, slope: torch.Tensor) -> torch.Tensor:
        return -0.5 * slope


def _gan(run: Run) -> tuple[nn.Module, nn.Module]:
    generator = run.build(lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6)))
    critic = run.build(lambda: nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)))
    return generator, critic


def dcgan(run: Run) -> None:
    """The DCGAN of torch's examples: ``netD.zero_grad()``, and two backward passes for the critic."""
    generator, critic = _gan(run)
    optimizer_d = run.wrap(torch.optim.Adam(critic.parameters(), lr=0.01, betas=(0.5, 0.999)), critic)
    optimizer_g = run.wrap(torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.999)), generator)
    for step in range(run.steps):
        critic.zero_grad()
        functional.softplus(-critic(run.batch(step, 4, 6))).mean().backward()
        fake = generator(run.batch(step + 700, 4, 3))
        functional.softplus(critic(fake.detach())).mean().backward()
        run.average(critic)
        optimizer_d.step()

        generator.zero_grad()
        functional.softplus(-critic(fake)).mean().backward()
        run.average(generator)
        optimizer_g.step()


def wasserstein(run: Run) -> None:
    """WGAN: five critic steps for one of the generator; weights clamped through the optimizer's groups."""
    generator, critic = _gan(run)
    optimizer_d = run.wrap(torch.optim.RMSprop(critic.parameters(), lr=0.01, eps=1e-4), critic)
    optimizer_g = run.wrap(torch.optim.RMSprop(generator.parameters(), lr=0.01, eps=1e-4), generator)
    for step in range(run.steps):
        optimizer_d.zero_grad()
        with torch.no_grad():
            fake = generator(run.batch(step + 700, 4, 3))
        (critic(fake).mean() - critic(run.batch(step, 4, 6)).mean()).backward()
        run.average(critic)
        optimizer_d.step()
        for group in optimizer_d.param_groups:
            for parameter in group["params"]:
                parameter.data.clamp_(-0.2, 0.2)
        if step % 5 == 4:
            optimizer_g.zero_grad()
            (-critic(generator(run.batch(step + 900, 4, 3))).mean()).backward()
            run.average(generator)
            optimizer_g.step()


def scaled_gan(run: Run) -> None:
    """One loss scaler for both networks' optimizers, one of them fused."""
    generator, critic = _gan(run)
    optimizer_d = run.wrap(torch.optim.AdamW(critic.parameters(), lr=0.01, eps=1e-4, fused=True), critic)
    optimizer_g = run.wrap(torch.optim.AdamW(generator.parameters(), lr=0.01, eps=1e-4), generator)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    for step in range(run.steps):
        fake = generator(run.batch(step + 700, 4, 3))
        optimizer_d.zero_grad()
        overflow = float("inf") if step == 3 and run.rank == 0 else 1.0
        scaler.scale(critic(fake.detach()).mean() * overflow).backward()
        run.average(critic)
        scaler.step(optimizer_d)
        optimizer_g.zero_grad()
        scaler.scale(-critic(fake).mean()).backward()
        run.average(generator)
        scaler.step(optimizer_g)
        scaler.update()
        run.see(scaler.get_scale())


def domain_adversarial(run: Run) -> None:
    """DANN: a reversed gradient, two losses in one backward pass, parts of the model by name."""
    model = run.build(
        lambda: nn.ModuleDict({name: nn.Linear(6, 6) for name in ("features", "label", "domain", "spare")})
    )
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        hidden = torch.tanh(model["features"](run.batch(step, 4, 6)))
        label = model["label"](hidden).pow(2).mean()
        domain = (model["domain"](_Reverse.apply(hidden)) - float(run.rank)).pow(2).mean()
        torch.autograd.backward([label, domain])
        run.average(model)
        optimizer.step()


ADVERSARIAL_LOOPS = (dcgan, wasserstein, scaled_gan, domain_adversarial)
