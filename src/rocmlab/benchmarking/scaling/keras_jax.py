"""The scaling benchmark in Keras on JAX: one process, `keras.distribution.DataParallel`, `fit`.

It runs as a program of its own, because Keras takes its backend, and JAX its devices, when they are imported.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
from keras import layers, ops

from rocmlab.training import watch

Measure = dict[str, Any]


def transformer(size: dict[str, int], flash: bool | None) -> keras.Model:
    """Return the larger network: the same parts and sizes as `networks.Transformer`."""
    width, length, heads = size["width"], size["length"], size["heads"]
    words = keras.Input((length,), dtype="int32")
    embedding = layers.ReversibleEmbedding(size["vocabulary"], width, embeddings_initializer=_normal())
    places = layers.Embedding(length, width, embeddings_initializer=_normal())(ops.arange(length)[None])
    x = embedding(words) + places
    for _ in range(size["layers"]):
        parts = _dense(3 * width)(layers.RMSNormalization()(x))
        parts = ops.reshape(parts, (-1, length, 3, heads, width // heads))
        query, key, value = (parts[:, :, number] for number in range(3))  # each (batch, length, heads, width / heads)
        seen = ops.dot_product_attention(query, key, value, is_causal=True, flash_attention=flash)
        x = x + _dense(width)(ops.reshape(seen, (-1, length, width)))
        gate, content = ops.split(_dense(2 * size["hidden"])(layers.RMSNormalization()(x)), 2, axis=-1)
        x = x + _dense(width)(ops.silu(gate) * content)
    scores = embedding(layers.RMSNormalization()(x), reverse=True)  # (batch, length, vocabulary)
    return keras.Model(words, layers.Activation("linear", dtype="float32")(scores))


def _dense(width: int) -> layers.Dense:
    return layers.Dense(width, use_bias=False, kernel_initializer=_normal())


def _normal() -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(stddev=0.02)


def compiled(measure: Measure, size: dict[str, int], steps: int) -> keras.Model:
    """Return the network ready to train, with the same first weights each time."""
    keras.utils.set_random_seed(measure["seed"])
    model = transformer(size, measure.get("flash"))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(3e-4), loss=loss, steps_per_execution=steps, jit_compile=True)
    return model


def run(measure: Measure, devices: int) -> dict[str, Any]:
    """Return samples per second in each timed block, and the running mean losses of a batch that never changes size."""
    generator = np.random.default_rng(measure["seed"])
    result: dict[str, Any] = {"name": measure["name"], "devices": devices}

    def tokens(count: int) -> tuple[np.ndarray, np.ndarray]:
        size = measure["size"]
        words = generator.integers(size["vocabulary"], size=(count, size["length"] + 1), dtype=np.int32)
        return words[:, :-1].copy(), words[:, 1:].copy()

    if measure["check_steps"]:
        model, losses = compiled(measure, measure["check_size"], 1), []
        keep = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda _batch, logs: losses.append(float(logs["loss"]))
        )
        x, y = tokens(measure["check_steps"] * measure["check_batch"])
        model.fit(x, y, batch_size=measure["check_batch"], shuffle=False, verbose=0, callbacks=[keep])
        result["losses"] = losses
        # Each device holds every value, the same to the last bit.
        values = [variable.value.addressable_shards for variable in model.trainable_variables]
        result["replicas_equal"] = all(
            len(parts) == devices and all(np.array_equal(parts[0].data, part.data) for part in parts)
            for parts in values
        )
        del model
    if measure["blocks"]:
        batch, steps = measure["batch"] * devices, measure["steps"]
        model, clock = compiled(measure, measure["size"], measure["steps_per_execution"]), watch.stopwatch()
        x, y = tokens(batch * steps)
        epochs = measure["blocks"] + 2  # the first compiles, the second warms up
        model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=[clock])
        result["samples_per_second"] = [steps * batch / seconds for seconds in clock.seconds[2:]]
        result["parameters"] = model.count_params()
    return result


def main() -> None:
    """Take the measure from the file of the first argument, write the result to that of the second."""
    order = json.loads(Path(sys.argv[1]).read_text())
    kind, count = ("gpu" if order["is_gpu"] else "cpu"), order["devices"]
    found = keras.distribution.list_devices(kind)
    if len(found) < count:
        sys.exit(f"JAX sees {len(found)} devices of the kind {kind}, not {count}: {', '.join(found)}")
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=found[:count]))
    measure = order["measure"]
    if measure.get("bf16"):
        keras.config.set_dtype_policy("mixed_bfloat16")
    result = run(measure, count)
    Path(sys.argv[2]).write_text(json.dumps({"jax": jax.__version__, "keras": keras.__version__, "result": result}))


if __name__ == "__main__":
    main()
