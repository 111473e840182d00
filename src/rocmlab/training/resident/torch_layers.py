"""Keras' layers, losses and random numbers on torch: with fewer passes over memory, and so that a graph can hold them.

Keras composes batch normalisation of ten operations, each of them a pass over all inputs, and as many for the gradient;
it also copies the inputs of each convolution and pooling to another order of axes, which torch does not need. In a
U-Net both move more memory than the convolutions themselves. Results are the same within float tolerance.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator

import keras
import torch

from rocmlab.training.resident import probes
from rocmlab.training.resident.torch_store import Untyped

OPTIONS = (  # of the layer, with which its call was compared; all but renorm and synchronized hold for ours
    "self axis momentum epsilon center scale beta_initializer gamma_initializer moving_mean_initializer "
    "moving_variance_initializer beta_regularizer gamma_regularizer beta_constraint gamma_constraint renorm "
    "renorm_clipping renorm_momentum synchronized kwargs"
)
MEAN = "sum_over_batch_size"  # Keras' name for the mean of the losses
MIXED = (torch.float16, torch.bfloat16)  # which torch's kernel takes with weights of 32 bits, as Keras keeps them


@contextlib.contextmanager
def lean() -> Iterator[None]:
    """Let Keras' layers do the same in fewer passes meanwhile, where they are as expected."""
    layer = keras.layers.BatchNormalization
    replaced: list[tuple[Untyped, str, Untyped]] = []
    if probes.usable("batch normalisation in fewer passes", _try_normalising):
        normalise = layer.call

        def call(self: Untyped, inputs: Untyped, training: bool | None = None, mask: Untyped = None) -> Untyped:
            if training and mask is None and _is_plain(self, inputs):
                return _normalise(self, inputs)
            return normalise(self, inputs, training=training, mask=mask)

        replaced.append((layer, "call", call))
    if probes.usable("convolution without a copy of its inputs", _try_viewing):
        from keras.src.backend.torch import nn

        transpose = nn._transpose_spatial_inputs

        def view(inputs: torch.Tensor) -> torch.Tensor:
            return inputs.movedim(-1, 1) if inputs.ndim == 4 else transpose(inputs)

        replaced.append((nn, "_transpose_spatial_inputs", view))
    with probes.replacing(replaced):
        yield


@contextlib.contextmanager
def capturable() -> Iterator[None]:
    """Make a step capturable and short: random numbers from the device's generator, one operation for a mean.

    Keras seeds a new generator on the host for each call with a SeedGenerator; here that generator's state advances
    as it does there, and the numbers come from torch's generator, which a graph can advance. The mean of a loss is
    taken by one division instead of Keras' ten operations on single numbers, each a launch.
    """
    replaced: list[tuple[Untyped, str, Untyped]] = []
    if probes.usable("drawing of random numbers in a graph", _try_drawing):
        from keras.src.backend.torch import random as keras_random

        seeded = keras_random.torch_seed_generator

        def generator(seed: Untyped) -> Untyped:
            if isinstance(seed, int):
                return seeded(seed)
            keras_random.draw_seed(seed)
            return None

        replaced.append((keras_random, "torch_seed_generator", generator))
    if probes.usable("mean of losses in one operation", _try_reducing):
        from keras.src.losses import loss as keras_loss

        reduced = keras_loss.reduce_values

        def reduce(values: Untyped, sample_weight: Untyped = None, reduction: Untyped = MEAN) -> Untyped:
            if reduction not in (MEAN, "mean") or values.numel() == 0 or values.ndim == 0:
                return reduced(values, sample_weight, reduction)
            return torch.sum(values) / values.numel()

        replaced.append((keras_loss, "reduce_values", reduce))
    with probes.replacing(replaced):
        yield


def _try_normalising() -> str:
    """Normalise a small batch Keras' way and ours; return what is not as expected."""
    layer = keras.layers.BatchNormalization
    if unknown := sorted(set(inspect.signature(layer.__init__).parameters) - set(OPTIONS.split())):
        return f"its layer has options that are not known here: {', '.join(unknown)}"
    theirs, ours = (layer(name="probe", dtype="float32") for _ in range(2))
    for each in (theirs, ours):
        each.build((None, 2, 2, 3))
    inputs = torch.linspace(-1.0, 2.0, 48, device=ours.moving_mean.value.device).reshape(4, 2, 2, 3)
    found = [(theirs.call(inputs, training=True), theirs), (_normalise(ours, inputs), ours)]
    values = [(outputs, each.moving_mean.value, each.moving_variance.value) for outputs, each in found]
    same = all(torch.allclose(one, other, rtol=1e-3, atol=1e-4) for one, other in zip(*values, strict=True))
    return "" if same else "its results are others"


def _try_viewing() -> str:
    """Reorder the axes of a small image Keras' way and ours; return what is not as expected."""
    from keras.src.backend.torch import nn

    inputs = torch.arange(24.0).reshape(1, 2, 3, 4)
    return "" if torch.equal(nn._transpose_spatial_inputs(inputs), inputs.movedim(-1, 1)) else "its results are others"


def _try_drawing() -> str:
    """Draw from Keras' own generator; return what is not as expected."""
    from keras.src.backend.torch import random as keras_random

    seeds = keras.random.SeedGenerator(1, name="probe")
    before = seeds.state.numpy().tolist()
    if not isinstance(keras_random.torch_seed_generator(seeds), torch.Generator):
        return "Keras does not draw from a generator of torch"
    after = seeds.state.numpy().tolist()
    keras_random.draw_seed(seeds)
    steps = [after[1] - before[1], seeds.state.numpy().tolist()[1] - after[1]]
    return "" if steps == [1, 1] else "Keras counts its seeds in another way"


def _try_reducing() -> str:
    """Take the mean of losses Keras' way; return what is not as expected."""
    from keras.src.losses import loss as keras_loss

    values = torch.linspace(-1.0, 2.0, 6, device=keras.ops.zeros(1).device).reshape(2, 3)
    same = torch.allclose(keras_loss.reduce_values(values, None, MEAN), values.mean())
    return "" if same else "its results are others"


def _is_plain(layer: Untyped, inputs: torch.Tensor) -> bool:
    """Whether torch's kernel does what the layer does, on these inputs."""
    renorm = getattr(layer, "renorm", False)  # since Keras 3.14
    if not layer.trainable or renorm or layer.synchronized or not isinstance(layer.axis, int):
        return False
    if inputs.device.type not in ("cpu", "cuda") or layer.axis % inputs.ndim not in (1, inputs.ndim - 1):
        return False
    weights = layer.moving_mean.value.dtype
    return inputs.dtype == weights or (inputs.dtype in MIXED and weights == torch.float32)


def _normalise(layer: Untyped, inputs: torch.Tensor) -> torch.Tensor:
    """Return the inputs with mean 0 and variance 1 in each channel, scaled and shifted; update the moving ones.

    As Keras has it, the variance is the biased one, of the batch and among the moving ones. The inputs are
    (batch, ..., channels), or the channels second, by the layer's axis.
    """
    gamma, beta = (None if each is None else each.value for each in (layer.gamma, layer.beta))
    images = inputs.movedim(layer.axis, 1)  # no copy
    if images.ndim == 4:  # for the other order torch's kernel is ten times slower with few channels
        images = images.contiguous(memory_format=torch.channels_last)
    outputs, mean, inverse = torch.native_batch_norm(images, gamma, beta, None, None, True, 0.0, layer.epsilon)
    with torch.no_grad():
        variance = (inverse.pow(-2) - layer.epsilon).clamp_(min=0)
        for moving, now in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
            moving.assign(moving.value * layer.momentum + now * (1.0 - layer.momentum))
    return outputs.movedim(1, layer.axis)
