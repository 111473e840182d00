"""The updates of Keras' optimizers on torch, without host reads and with fewer passes over memory.

Keras' own read numbers on the host for SGD, Adadelta and Nadam and branch there for LossScaleOptimizer, which a graph
cannot hold; RMSprop and Adam take a third more passes than they need. Each function here is the same arithmetic on the
same slots, so that weights agree within float tolerance and the optimizer can continue with either.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import torch

from rocmlab.training.resident import probes, torch_store
from rocmlab.training.resident.torch_store import Untyped

Tensors = list[torch.Tensor]
Update = Callable[[Any, Tensors, list[Any], Any], None]
Hidden = tuple[Any, str, Callable[..., None]]  # an object, its method, what is called instead
# What Keras does around an update, whatever the optimizer.
AROUND = ("use_ema", "ema", "gradient_accum", "loss_scale", "weight_decay", "learning_rate", "clip", "global_clip")


def sgd(optimizer: Untyped, grads: Tensors, variables: list[Any], learning_rate: Untyped) -> None:
    """Move down the gradient, with momentum if the optimizer has it."""
    values, grads, rate, slots = _unpack(optimizer, grads, variables, learning_rate)
    if optimizer.momentum == 0:
        _add_scaled(values, grads, -rate)
        return
    momentums = slots(optimizer.momentums)
    torch._foreach_mul_(momentums, optimizer.momentum)
    _add_scaled(momentums, grads, -rate)
    if optimizer.nesterov:
        _add_scaled(values, grads, -rate)
        torch._foreach_add_(values, momentums, alpha=optimizer.momentum)
    else:
        torch._foreach_add_(values, momentums)


def rmsprop(optimizer: Untyped, grads: Tensors, variables: list[Any], learning_rate: Untyped) -> None:
    """Divide the gradient by the root of its mean square."""
    values, grads, rate, slots = _unpack(optimizer, grads, variables, learning_rate)
    squares = slots(optimizer._velocities)
    torch._foreach_mul_(squares, optimizer.rho)
    torch._foreach_addcmul_(squares, grads, grads, value=1 - optimizer.rho)
    roots = torch._foreach_add(squares, optimizer.epsilon)
    if optimizer.centered:
        means = slots(optimizer._average_gradients)
        torch._foreach_mul_(means, optimizer.rho)
        torch._foreach_add_(means, grads, alpha=1 - optimizer.rho)
        torch._foreach_addcmul_(roots, means, means, value=-1)
    torch._foreach_sqrt_(roots)
    if optimizer.momentum > 0:
        momentums = slots(optimizer._momentums)
        torch._foreach_mul_(momentums, optimizer.momentum)
        _add_quotient(momentums, grads, roots, rate, 1)
        torch._foreach_add_(values, momentums, alpha=-1)
    else:
        _add_quotient(values, grads, roots, rate, -1)


def adam(optimizer: Untyped, grads: Tensors, variables: list[Any], learning_rate: Untyped) -> None:
    """Divide the running mean of the gradient by the root of that of its square, both corrected for their start."""
    values, grads, rate, slots = _unpack(optimizer, grads, variables, learning_rate)
    step = _step(optimizer, rate)
    rate = rate * torch.sqrt(1 - optimizer.beta_2**step) / (1 - optimizer.beta_1**step)
    means = slots(optimizer._momentums)
    squares = slots(optimizer._velocities)
    torch._foreach_mul_(means, optimizer.beta_1)
    torch._foreach_add_(means, grads, alpha=1 - optimizer.beta_1)
    torch._foreach_mul_(squares, optimizer.beta_2)
    torch._foreach_addcmul_(squares, grads, grads, value=1 - optimizer.beta_2)
    if optimizer.amsgrad:
        largest = slots(optimizer._velocity_hats)
        torch._foreach_maximum_(largest, squares)
        squares = largest
    roots = torch._foreach_sqrt(squares)
    torch._foreach_add_(roots, optimizer.epsilon)
    _add_quotient(values, means, roots, rate, -1)


def adadelta(optimizer: Untyped, grads: Tensors, variables: list[Any], learning_rate: Untyped) -> None:
    """Scale the gradient by the ratio of the roots of mean squared changes and mean squared gradients."""
    values, grads, rate, slots = _unpack(optimizer, grads, variables, learning_rate)
    squares = slots(optimizer._accumulated_grads)
    changes = slots(optimizer._accumulated_delta_vars)
    torch._foreach_mul_(squares, optimizer.rho)
    torch._foreach_addcmul_(squares, grads, grads, value=1 - optimizer.rho)
    deltas = torch._foreach_add(changes, optimizer.epsilon)
    torch._foreach_sqrt_(deltas)
    torch._foreach_mul_(deltas, grads)
    roots = torch._foreach_add(squares, optimizer.epsilon)
    torch._foreach_sqrt_(roots)
    torch._foreach_div_(deltas, roots)
    torch._foreach_mul_(changes, optimizer.rho)
    torch._foreach_addcmul_(changes, deltas, deltas, value=1 - optimizer.rho)
    _add_scaled(values, deltas, -rate)


def nadam(optimizer: Untyped, grads: Tensors, variables: list[Any], learning_rate: Untyped) -> None:
    """Adam with Nesterov's momentum."""
    values, grads, rate, slots = _unpack(optimizer, grads, variables, learning_rate)
    step = _step(optimizer, rate)
    now = optimizer.beta_1 * (1.0 - 0.5 * 0.96**step)
    after = optimizer.beta_1 * (1.0 - 0.5 * 0.96 ** (step + 1))
    product = optimizer._u_product.value * now
    optimizer._u_product.value.copy_(product)
    means = slots(optimizer._momentums)
    squares = slots(optimizer._velocities)
    torch._foreach_mul_(means, optimizer.beta_1)
    torch._foreach_add_(means, grads, alpha=1 - optimizer.beta_1)
    torch._foreach_mul_(squares, optimizer.beta_2)
    torch._foreach_addcmul_(squares, grads, grads, value=1 - optimizer.beta_2)
    ahead = torch._foreach_mul(means, after / (1 - product * after))
    torch._foreach_add_(ahead, torch._foreach_mul(grads, (1 - now) / (1 - product)))
    roots = torch._foreach_div(squares, 1 - optimizer.beta_2**step)
    torch._foreach_sqrt_(roots)
    torch._foreach_add_(roots, optimizer.epsilon)
    _add_quotient(values, ahead, roots, rate, -1)


UPDATES: dict[type, Update] = {
    keras.optimizers.SGD: sgd,
    keras.optimizers.RMSprop: rmsprop,
    keras.optimizers.Adam: adam,
    keras.optimizers.AdamW: adam,
    keras.optimizers.Adadelta: adadelta,
    keras.optimizers.Nadam: nadam,
}


@contextlib.contextmanager
def in_place(optimizer: Untyped, *, branchless: bool) -> Iterator[None]:
    """Let a Keras optimizer update by the functions here inside the block, where it has not been overridden.

    Also one inside a LossScaleOptimizer, whose branch on finite gradients is taken out if it is to be branchless.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    update = _update_of(inner)
    hidden: list[Hidden] = []
    if update is not None and _fits(inner, update):
        hidden.append(_hide_update(inner, update))
    scales = branchless and type(optimizer) is keras.optimizers.LossScaleOptimizer
    if scales and probes.usable("scaling of losses without a branch", _try_scaling):
        hidden.append(_hide_scaling(optimizer))
    with _hidden(hidden):
        yield


def _hide_update(optimizer: Untyped, update: Update) -> Hidden:
    return optimizer, "_parallel_update_step", lambda *args: update(optimizer, *args)


def _hide_scaling(optimizer: Untyped) -> Hidden:
    return optimizer, "_common_apply", lambda *args: scaled(optimizer, *args)


@contextlib.contextmanager
def _hidden(hidden: list[Hidden]) -> Iterator[None]:
    """Hide methods of objects by functions meanwhile."""
    before = [owner.__dict__.get(name) for owner, name, _ in hidden]
    for owner, name, function in hidden:
        owner.__dict__[name] = function
    try:
        yield
    finally:
        for (owner, name, _), earlier in zip(hidden, before, strict=True):
            owner.__dict__.pop(name)
            if earlier is not None:
                owner.__dict__[name] = earlier


def _fits(optimizer: Untyped, update: Update) -> bool:
    """Whether an update does what Keras does, with the numbers of this optimizer; tried once for each set of them."""
    kind = type(optimizer)
    numbers = {
        name: value
        for name in inspect.signature(kind.__init__).parameters
        if isinstance(value := vars(optimizer).get(name), (bool, int, float)) and not name.startswith(AROUND)
    }
    options = ", ".join(f"{name}={value}" for name, value in sorted(numbers.items()))

    def attempt() -> str:
        ours, theirs = (kind(learning_rate=0.01, name="probe", **numbers) for _ in range(2))
        return _compare(ours, theirs, [_hide_update(ours, update)], (1.0, -2.0))

    return probes.usable(f"update of {kind.__name__}({options})", attempt)


def _try_scaling() -> str:
    """Let two optimizers skip gradients that are not finite, one Keras' way and one ours."""
    kinds = keras.optimizers
    ours, theirs = (
        kinds.LossScaleOptimizer(kinds.SGD(0.01, name="probe"), initial_scale=4.0, dynamic_growth_steps=2, name="probe")
        for _ in range(2)
    )
    return _compare(ours, theirs, [_hide_scaling(ours)], (1.0, float("inf"), -2.0, 1.0, 3.0))


def _compare(ours: Untyped, theirs: Untyped, hidden: list[Hidden], factors: tuple[float, ...]) -> str:
    """Apply the same gradients by two equal optimizers, of which ours has methods hidden; return how they differ."""
    for owner, name, _function in hidden:
        if not callable(getattr(owner, name, None)):
            return f"it has no {name}"
    results = []
    for optimizer, hiding in ((ours, hidden), (theirs, [])):
        variables = [keras.Variable(np.linspace(-1, 1, 6).reshape(2, 3), dtype="float32", name="probe")]
        optimizer.build(variables)
        value = variables[0].value
        slope = torch.linspace(0.5, 2.0, 6, device=value.device).reshape(2, 3)
        with _hidden(hiding), torch.no_grad():
            for factor in factors:
                optimizer.apply([slope * factor], variables)
        results.append([value.detach(), *(one.value.detach() for one in optimizer.variables)])
    pairs = zip(*results, strict=True)
    same = all(torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-6) for one, other in pairs)
    return "" if same else "its results are others"


def scaled(optimizer: Untyped, grads: Tensors, trainable_variables: list[Any]) -> None:
    """Apply a LossScaleOptimizer without a branch: keep the update where all gradients are finite, else undo it."""
    inner = optimizer.inner_optimizer
    scale, counter = optimizer.dynamic_scale.value, optimizer.step_counter.value
    known = [grad for grad in grads if grad is not None]
    finite = torch.stack([torch.isfinite(grad).all() for grad in known]).all()
    state = [variable.value for variable in (*inner.variables, *trainable_variables)]
    before = [value.clone() for value in state]
    inner.apply([None if grad is None else grad / scale for grad in grads], trainable_variables)
    for value, old in zip(state, before, strict=True):
        value.copy_(torch.where(finite, value, old))
    grows = counter == optimizer.dynamic_growth_steps - 1
    scale.copy_(scale * torch.where(finite, torch.where(grows, 2.0, 1.0), 0.5))
    counter.copy_(torch.where(finite & ~grows, counter + 1, 0))


def _update_of(optimizer: Untyped) -> Update | None:
    """Return the update for exactly Keras' own optimizers; a subclass may do something else."""
    kind = type(optimizer)
    if not kind.__module__.startswith("keras."):
        return None
    for base, update in UPDATES.items():
        if kind is base or (base in kind.__mro__ and kind.__name__ == base.__name__):
            return update
    return None


def _unpack(optimizer: Untyped, grads: Tensors, variables: list[Any], learning_rate: Untyped) -> tuple[Any, ...]:
    """Return the tensors of an update: values, gradients, the rate, (), and a function from slots to tensors.

    On a GPU they are cut into pieces (`torch_store.cut`).
    """
    values = [variable.value for variable in variables]
    rate = getattr(learning_rate, "value", learning_rate)
    rate = torch.as_tensor(rate, dtype=values[0].dtype, device=values[0].device).detach()
    places = [optimizer._get_variable_index(variable) for variable in variables]
    size = torch_store.piece_size(values)

    def slots(found: list[Any]) -> Tensors:
        return torch_store.cut([found[place].value for place in places], size)

    return torch_store.cut(values, size), torch_store.cut(list(grads), size), rate, slots


def _step(optimizer: Untyped, like: torch.Tensor) -> torch.Tensor:
    """Return the number of this step, from 1, as a tensor, () of the variables' type."""
    iterations = optimizer.iterations
    return (getattr(iterations, "value", iterations) + 1).to(like.dtype)


def _add_scaled(targets: Tensors, sources: Tensors, factor: torch.Tensor) -> None:
    """Add factor x sources to targets; the factor stays on the device."""
    if factor.device.type == "cpu":
        torch._foreach_add_(targets, sources, alpha=factor.item())
    else:
        torch._foreach_add_(targets, torch._foreach_mul(sources, factor))


def _add_quotient(targets: Tensors, sources: Tensors, divisors: Tensors, factor: torch.Tensor, sign: int) -> None:
    """Add sign x factor x sources / divisors to targets, changing the divisors; the factor stays on the device."""
    if factor.device.type == "cpu":
        torch._foreach_addcdiv_(targets, sources, divisors, value=sign * factor.item())
    else:
        torch._foreach_div_(divisors, factor)
        torch._foreach_addcdiv_(targets, sources, divisors, value=sign)
