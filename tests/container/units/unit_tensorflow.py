"""Run by TensorFlow's interpreter inside the image: Keras on TensorFlow learns something small."""

import importlib.metadata

import keras
import numpy as np
import tensorflow as tf

assert keras.backend.backend() == "tensorflow"
assert float(tf.reduce_sum(tf.matmul(tf.ones((64, 32)), tf.ones((32, 16))))) == 64 * 32 * 16

keras.utils.set_random_seed(1)
x = np.random.default_rng(1).normal(size=(512, 8)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, activation="sigmoid")])
model.compile(optimizer=keras.optimizers.Adam(0.05), loss="binary_crossentropy")
losses = model.fit(x, y, epochs=5, verbose=0).history["loss"]
assert losses[-1] < losses[0] / 2, losses
print("tensorflow", tf.__version__, "matplotlib", importlib.metadata.version("matplotlib"), "rocmlab", end=" ")
print(importlib.metadata.version("rocmlab"))
