"""The networks of the notebooks 01, 02 and 06, compiled, for `rocmlab bench train`; Keras is imported by its caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Model = Any  # a compiled keras.Model


def fc() -> Model:
    """784-512-512-10 with dropout: 669,706 parameters; inputs (n, 784)."""
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((784,)),
            layers.Dense(512, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(512, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.RMSprop(0.001), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def cnn(optimizer: str = "Adadelta", learning_rate: float = 1.0) -> Model:
    """Two convolutions and a dense layer: 1,199,882 parameters; inputs (n, 28, 28, 1).

    Adadelta's learning rate is written out: it was 1.0 by default once, and is 0.001 now, which trains badly.
    """
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )
    chosen = getattr(keras.optimizers, optimizer)(learning_rate)
    model.compile(chosen, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def unet(size: int, policy: str = "float32") -> Model:
    """The U-Net for images of this size; at 512 pixels the article's, 20,886,706 parameters."""
    import keras

    keras.config.set_dtype_policy(policy)
    base = 8 if size >= 512 else 4
    layers = keras.layers
    levels = {64: 2, 128: 3, 256: 4, 512: 5}[size]
    inputs = keras.Input((size, size, 1))
    x = layers.Conv2D(base, 3, padding="same", use_bias=False)(inputs)
    x = layers.Activation("sigmoid")(layers.BatchNormalization(momentum=0.95)(x))
    bridges = [x]
    multiple = 1
    for multiple in (1, 2, 4, 16, 64)[:levels]:
        x = _unit(x, layers.Conv2D(multiple * base, 3, strides=2, padding="same", use_bias=False))
        narrow = _unit(x, layers.Conv2D(multiple * base, 1, padding="same", use_bias=False), 0.5)
        wide = _unit(x, layers.SeparableConv2D(multiple * base, 5, padding="same", use_bias=False), 0.5)
        x = layers.Concatenate()([narrow, wide])
        bridges.append(x)
    for factor in (2, 4):  # 16 → 12 → 8 pixels
        x = _unit(x, layers.SeparableConv2D(factor * multiple * base, 5, use_bias=False))
    for multiple, bridge in zip((64, 48, 20, 7, 3, 3)[-levels - 1 :], reversed(bridges), strict=True):
        x = layers.UpSampling2D(interpolation="bilinear")(x)
        x = _unit(x, layers.Conv2DTranspose(multiple * base, 3, padding="same", use_bias=False))
        x = layers.Concatenate()([x, bridge])
    x = _unit(x, layers.Conv2D(4 * base, 3, use_bias=False), None)
    x = _unit(x, layers.Conv2DTranspose(2 * base, 3, use_bias=False), None)
    x = layers.Concatenate()([x, inputs])
    model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid", dtype="float32")(x))
    optimizer = keras.optimizers.SGD(0.05, momentum=0.95, nesterov=True)
    model.compile(optimizer, _overlap_loss, metrics=[_iou()])
    return model


def _iou() -> Any:  # noqa: ANN401  a keras.Metric
    """Intersection over union of an epoch's pixels; Keras' own counts pixel by pixel in Python on PyTorch."""
    import keras
    from keras import ops

    class IoU(keras.metrics.Metric):  # type: ignore[misc]  # frameworks have no types
        def __init__(self) -> None:
            super().__init__(name="iou")
            self.both, self.either = (self.add_variable((), "zeros", name=name) for name in ("both", "either"))

        def update_state(self, mask: Any, predicted: Any, sample_weight: Any = None) -> None:  # noqa: ANN401  tensors
            mask, predicted = ops.cast(mask, "float32"), ops.cast(predicted > 0.5, "float32")
            self.both.assign_add(ops.sum(mask * predicted))
            self.either.assign_add(ops.sum(ops.maximum(mask, predicted)))

        def result(self) -> Any:  # noqa: ANN401  a tensor
            return self.both / ops.maximum(self.either, 1.0)

    return IoU()


def _unit(x: Any, convolution: Any, dropout: float | None = 0.25) -> Any:  # noqa: ANN401  Keras has no types
    """A convolution, batch normalisation, a leaky ReLU and dropout."""
    import keras

    layers = keras.layers
    x = layers.LeakyReLU(0.2)(layers.BatchNormalization(momentum=0.95)(convolution(x)))
    return x if dropout is None else layers.Dropout(dropout)(x)


def _overlap_loss(mask: Any, predicted: Any) -> Any:  # noqa: ANN401  tensors (batch, size, size, 1)
    """Squared error plus 1 - IoU², over the whole batch."""
    from keras import ops

    both = ops.sum(mask * predicted)
    iou = (both + 1) / (ops.sum(mask) + ops.sum(predicted) - both + 1)
    return ops.mean(ops.square(mask - predicted)) + 1 - ops.square(iou)


MAKERS: Mapping[str, Callable[[int], Model]] = {  # by workload: the network for images of this size
    "mnist_fc": lambda _size: fc(),
    "mnist_cnn": lambda _size: cnn(),
    "mnist_cnn_rmsprop": lambda _size: cnn("RMSprop", 0.001),
    "unet": unet,
    "unet_mixed": lambda size: unet(size, "mixed_float16"),
}
