"""Loops as their authors publish them, whose point is when they zero, accumulate, step, skip and save."""

import copy
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel

from tests.runtime.loop_device import numbers
from tests.runtime.loops.loop_run import Run
from tests.runtime.loops.published_gradients import loss_of, network, sgd


def accumulation_with_tail(run: Run) -> None:
    """Accumulates over four batches; an epoch has ten, so that its last step has two."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model, backward_passes_per_step=4)
    for epoch in range(run.steps // 3):
        optimizer.zero_grad()
        for number in range(10):
            (loss_of(run, model, 10 * epoch + number) / 4).backward()
            if (number + 1) % 4 == 0 or number == 9:
                run.average(model)
                run.see(nn.utils.clip_grad_norm_(model.parameters(), 0.05))
                optimizer.step()
                optimizer.zero_grad()


def scaled_accumulation(run: Run) -> None:
    """Loss scaling, accumulation in no_sync, unscaling and clipping; one rank overflows once."""
    model = run.build(network)
    optimizer = run.wrap(torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=4)
    for step in range(run.steps):
        with run.no_sync(optimizer):
            for number in range(2):
                scaler.scale(loss_of(run, model, 3 * step + number) / 3).backward()
        overflow = float("inf") if step == 2 and run.rank == 1 else 1.0
        scaler.scale(loss_of(run, model, 3 * step + 2) / 3 * overflow).backward()
        run.average(model)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        run.see(scaler.get_scale())


def average_through_saved_list(run: Run) -> None:
    """A moving average over a list of parameters that was made before the loop."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    parameters = list(model.parameters())
    shadow = [parameter.detach().clone() for parameter in parameters]
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        optimizer.step()
        if run.wrapped:
            optimizer.synchronize()  # the list was made before: nothing tells that it is read
        with torch.no_grad():
            for mean, parameter in zip(shadow, parameters, strict=True):
                mean.lerp_(parameter, 0.1)
    run.see(shadow)


def quasi_newton(run: Run) -> None:
    """LBFGS calls its closure as often as it likes."""
    model = run.build(network)
    optimizer = run.wrap(torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3, history_size=4), model)
    for step in range(run.steps // 2):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(run, model, step)
            loss.backward()
            run.average(model)
            return run.mean(loss)

        optimizer.step(closure)


def closure_that_clips(run: Run) -> None:
    """A closure with clipping, as Lightning's automatic optimization calls it."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):

        def closure(step: int = step) -> torch.Tensor:
            loss = loss_of(run, model, step)
            optimizer.zero_grad()
            loss.backward()
            run.average(model)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            return loss

        optimizer.step(closure)


def zero_at_the_end(run: Run) -> None:
    """Gradients are dropped after the step by the optimizer, or by the model."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        loss_of(run, model, step).backward()
        run.average(model)
        optimizer.step()
        (model if step % 2 else optimizer).zero_grad(set_to_none=step % 3 == 0)


def none_by_hand(run: Run) -> None:
    """``p.grad = None`` for every parameter, as torch's tuning guide once said."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        for parameter in model.parameters():
            parameter.grad = None
        loss_of(run, model, step).backward()
        run.average(model)
        run.see([float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None])
        optimizer.step()


def zero_between_forward_and_backward(run: Run) -> None:
    """Zeroes after the forward pass, as torch's first tutorial does."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        loss = loss_of(run, model, step)
        optimizer.zero_grad()
        loss.backward()
        run.average(model)
        optimizer.step()


def checkpoint_while_accumulating(run: Run) -> None:
    """Saves between two backward passes of a step, and goes back to it later."""
    model = run.build(network)
    optimizer = run.wrap(torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4), model)
    saved: Any = None
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, 2 * step).backward()
        if step == 3:
            saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        loss_of(run, model, 2 * step + 1).backward()
        run.average(model)
        optimizer.step()
        if step == 5:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])


def early_stopping(run: Run) -> None:
    """Keeps the best model, stops on all ranks when it has not improved, goes back to the best."""
    model = run.build(network)
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=1.0), model)
    best, waited = float("inf"), 0
    kept = copy.deepcopy(model.state_dict())
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        optimizer.step()
        model.eval()
        with torch.no_grad():
            loss = float(run.agree(loss_of(run, model, 999)))
        model.train()
        run.see(loss)
        if loss < best:
            best, waited, kept = loss, 0, copy.deepcopy(model.state_dict())
        else:
            waited += 1
        if waited == 2:
            break
    model.load_state_dict(kept)


def uneven_last_batch(run: Run) -> None:
    """In the last batch of an epoch the other ranks have data and the last rank has none."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        if step % 4 != 3 or run.rank < run.size - 1:
            loss_of(run, model, step).backward()
        run.average(model)
        optimizer.step()


def uneven_last_batch_clipped(run: Run) -> None:
    """The same with clipping: the rank without data takes the gradients that the others clipped."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        if step % 4 != 3 or run.rank > 0:
            loss_of(run, model, step).backward()
        run.average(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()


def scheduler_on_inner(run: Run) -> None:
    """A scheduler that was given the optimizer before it was wrapped."""
    model = run.build(network)
    inner = sgd(model)
    optimizer = run.wrap(inner, model)
    scheduler = lr_scheduler.CosineAnnealingLR(inner, T_max=run.steps)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        optimizer.step()
        scheduler.step()
        run.see(scheduler.get_last_lr())


def one_cycle(run: Run) -> None:
    """OneCycleLR changes learning rate and momentum after every step."""
    model = run.build(network)
    optimizer = run.wrap(torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4), model)
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=run.steps + 1)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        optimizer.step()
        scheduler.step()


def warm_up_by_hand(run: Run) -> None:
    """Sets the learning rate in the groups before every step."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, (step + 1) / 5)
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        optimizer.step()


def look_ahead(run: Run) -> None:
    """Lookahead: slow weights kept beside the groups' parameters, every third step."""
    model = run.build(network)
    optimizer = run.wrap(torch.optim.Adam(model.parameters(), lr=0.02, eps=1e-4), model)
    slow = {p: p.detach().clone() for group in optimizer.param_groups for p in group["params"]}
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        optimizer.step()
        if step % 3 == 2:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    slow[parameter].add_(parameter.data - slow[parameter], alpha=0.5)
                    parameter.data.copy_(slow[parameter])


def weight_averaging(run: Run) -> None:
    """SWA: torch's AveragedModel takes the model's weights after some steps."""
    model = run.build(network)
    averaged = AveragedModel(model)
    run.models.append(averaged)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        optimizer.step()
        if step % 2:
            averaged.update_parameters(model)


def skipped_batches(run: Run) -> None:
    """A batch whose loss is not finite on any rank is skipped by all, before or after its backward pass."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss = loss_of(run, model, step)
        if step % 4 == 1 and run.rank == 0:
            loss = loss * float("nan")
        if step % 8 < 4 and not torch.isfinite(run.agree(loss)):
            continue
        loss.backward()
        if not torch.isfinite(run.agree(loss)):
            optimizer.zero_grad()
            continue
        run.average(model)
        optimizer.step()


def langevin(run: Run) -> None:
    """SGLD: noise on weights after every step, the same on every rank."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    generator = torch.Generator().manual_seed(1)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        optimizer.step()
        for parameter in model.parameters():
            noise = numbers(parameter.shape, generator, parameter.dtype)
            parameter.data.add_(noise, alpha=0.01)


def evaluation_before_the_step(run: Run) -> None:
    """Evaluates between the backward pass and the step, in inference mode."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        with torch.inference_mode():
            run.see(model(torch.ones(2, 6, dtype=torch.float64)))
        optimizer.step()
        run.see(copy.deepcopy(model)(torch.ones(2, 6, dtype=torch.float64)))


def backward_now_and_then(run: Run) -> None:
    """Backward passes and steps at rhythms of their own: two of five batches have none."""
    model = run.build(network)
    optimizer = run.wrap(sgd(model), model)
    for step in range(2 * run.steps):
        if step % 5 in (0, 1, 3):
            loss_of(run, model, step).backward()
        if step % 3 == 2:
            run.average(model)
            optimizer.step()
            optimizer.zero_grad()


def wrapped_again(run: Run) -> None:
    """Closes the wrapper in the middle and wraps the same optimizer again."""
    model = run.build(network)
    inner = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4)
    optimizer = run.wrap(inner, model)
    for step in range(run.steps):
        if step == run.steps // 2:
            run.close()
            optimizer = run.wrap(inner, model)
        optimizer.zero_grad()
        loss_of(run, model, step).backward()
        run.average(model)
        run.see([parameter.grad for parameter in model.parameters()])
        optimizer.step()


STEP_LOOPS = (
    accumulation_with_tail,
    scaled_accumulation,
    average_through_saved_list,
    quasi_newton,
    closure_that_clips,
    zero_at_the_end,
    none_by_hand,
    zero_between_forward_and_backward,
    checkpoint_while_accumulating,
    early_stopping,
    uneven_last_batch,
    uneven_last_batch_clipped,
    scheduler_on_inner,
    one_cycle,
    warm_up_by_hand,
    look_ahead,
    weight_averaging,
    skipped_batches,
    langevin,
    evaluation_before_the_step,
    backward_now_and_then,
    wrapped_again,
)
