"""Keras on torch: the data stay on the device; on a GPU many steps are one CUDA or HIP graph.

A step is that of Keras' trainer: its layers, its losses, its optimizer with its own slots. What is omitted is what
the host does around it for each batch, and what a graph cannot hold is done another way (`torch_updates`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import keras
import torch

from rocmlab.training.resident import probes, torch_layers, torch_store, torch_updates
from rocmlab.training.resident.engine import Data, Options, Tree, fell_back, layers_of, leaves, number, tree_map
from rocmlab.training.resident.graphs import Rows
from rocmlab.training.resident.torch_epochs import Epochs
from rocmlab.training.resident.torch_store import Batches, Untyped, join

# What Keras' train_step uses, and our step with it.
PARTS = ("_call_has_training_arg", "_compute_loss", "_loss_tracker", "_compile_metrics")
MASK = "_keras_mask"  # where Keras keeps the mask of a tensor
# Functions of Keras that give each sample a value of its own, from outputs (samples, ..., values); from (samples,) they
# give one value. Others always give one for the batch, such as `dice`, or compare its samples, such as `circle`.
SAMPLEWISE = re.compile(
    r"\w*(accuracy|crossentropy|_error|hinge)|cosine_similarity|huber|log_cosh|kl_divergence|poisson"
)


class TorchEngine:
    """One Keras model's epochs on the device its variables are on."""

    def __init__(self, model: Untyped, data: Data, options: Options) -> None:
        self._model, self._seed = model, options.seed
        self._device = _device(model)
        self._note = ""
        if model.jit_compile:
            self._note = "jit_compile=True is not used: torch.compile runs in fit() only"
            fell_back(self._note)
        self._epochs = Epochs(self._device, data, options, lambda: _uncapturable(model))
        self._epochs.run_by(self._train_steps, partial(EvaluationSteps, model), lambda: _recording(model))

    def _train_steps(self, tensors: Tree) -> TrainSteps:
        self._training = TrainSteps(self._model, tensors)
        return self._training

    @property
    def how(self) -> str:
        """What runs an epoch, where, and why nothing faster if so."""
        return "; ".join([self._epochs.how, *([self._note] if self._note else []), *probes.reports()])

    def train(self, epoch: int) -> dict[str, float]:
        """Train one epoch and wait for the device."""
        model = self._model
        self._training.refresh()
        self._epochs.see(_fingerprint(model))  # a callback may have changed what a graph holds
        model.reset_metrics()
        model.train()
        with _updates(model, self._device):
            logs = self._epochs.train(epoch, self._seed, lambda: _logs(model, None))
        model.eval()
        found = _logs(model, logs)
        torch_store.synchronise(self._device)
        return found

    def evaluate(self) -> dict[str, float]:
        """Return the losses and metrics of the validation set."""
        self._model.eval()
        self._model.reset_metrics()
        return _logs(self._model, self._epochs.validate())

    def close(self) -> None:
        """Drop data, graphs and gradients."""
        self._training.drop_gradients()
        self._epochs.close()


class TrainSteps:
    """Training steps of a Keras model over rows of resident samples."""

    def __init__(self, model: Untyped, tensors: Tree) -> None:
        self._model, self._tensors = model, tensors
        missing = ", ".join(name for name in PARTS if not hasattr(model, name))
        self._is_keras = type(model).train_step is keras.Model.train_step and probes.usable(
            "training step without Keras' bookkeeping", lambda: missing and f"Keras' models have no {missing}"
        )
        self._deferred = self._is_keras and _additive(model)
        self._row_bytes = torch_store.row_bytes(tensors)
        self.refresh()

    def refresh(self) -> None:
        """Take the lists of weights again: layers may have been frozen since."""
        self._parameters = list(self._model.parameters())
        self._weights = list(self._model.trainable_weights)
        self._values = [weight.value for weight in self._weights]

    def drop_gradients(self) -> None:
        """Free the gradients; those of a graph are in its memory."""
        for parameter in self._parameters:
            parameter.grad = None

    def __call__(self, rows: Rows, batch: int) -> Untyped:
        """Train the rows in steps of `batch`; return the logs of a train_step of the model's own, else None."""
        batches = Batches(self._tensors, rows, batch, self._row_bytes)
        if not self._is_keras:
            logs = None
            for x, y, weight in batches:
                logs = self._model.train_step(keras.utils.pack_x_y_sample_weight(x, y, weight))
            self.drop_gradients()
            return logs
        pending: list[Any] = []
        for x, y, weight in batches:
            loss, outputs = self._step(x, y, weight)
            pending.append((loss, outputs, x, y, weight))
            joins = self._deferred and all(leaf.ndim > 1 and not hasattr(leaf, MASK) for leaf in leaves(outputs))
            if not joins or torch_store.tensor_bytes(outputs) * len(pending) > torch_store.OUTPUT_BYTES:
                _account(self._model, pending, batch)
                pending = []
        if pending:
            _account(self._model, pending, batch)
        self.drop_gradients()
        return None

    def _step(self, x: Tree, y: Tree, weight: Tree) -> tuple[Any, Any]:
        """Do what Keras' train_step does up to the metrics; return the loss and the outputs."""
        model = self._model
        outputs = model(x, training=True) if model._call_has_training_arg else model(x)
        self.drop_gradients()
        loss = model._compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weight, training=True)
        if self._weights:
            model.optimizer.scale_loss(loss).backward()
            with torch.no_grad():
                model.optimizer.apply([value.grad for value in self._values], self._weights)
        return loss.detach(), tree_map(_detach, outputs)


class EvaluationSteps:
    """Test steps of a Keras model over rows of resident samples."""

    def __init__(self, model: Untyped, tensors: Tree) -> None:
        self._model, self._tensors = model, tensors
        self._row_bytes = torch_store.row_bytes(tensors)

    def __call__(self, rows: Rows, batch: int) -> Untyped:
        """Test the rows in steps of `batch`; return the last step's logs."""
        logs = None
        with torch.no_grad():
            for x, y, weight in Batches(self._tensors, rows, batch, self._row_bytes):
                logs = self._model.test_step(keras.utils.pack_x_y_sample_weight(x, y, weight))
        return logs


def _detach(output: torch.Tensor) -> torch.Tensor:
    """Return an output without its graph, but with the mask that Keras' metrics look for."""
    found = output.detach()
    if hasattr(output, MASK):
        setattr(found, MASK, getattr(output, MASK))
    return found


def _account(model: Untyped, pending: list[Any], batch: int) -> None:
    """Add the losses and outputs of some steps to the model's loss and metrics, as each step of `fit` would have."""
    losses = [loss for loss, *_ in pending]
    mean = losses[0] if len(losses) == 1 else torch.stack(losses).mean()
    model._loss_tracker.update_state(mean, sample_weight=batch * len(losses))
    with torch.no_grad():
        if type(model).compute_metrics is not keras.Model.compute_metrics:
            for _, outputs, x, y, weight in pending:
                model.compute_metrics(x, y, outputs, sample_weight=weight)
        elif model._compile_metrics is not None:
            outputs, y, weight = (join([step[place] for step in pending]) for place in (1, 3, 4))
            model._compile_metrics.update_state(y, outputs, weight)


def _additive(model: Untyped) -> bool:
    """Whether metrics over several batches together give what they give batch by batch: Keras' own do."""
    if type(model).compute_metrics is not keras.Model.compute_metrics:
        return False
    found = model._compile_metrics.metrics if model._compile_metrics is not None else []
    return all(type(metric).__module__.startswith("keras.") and _is_samplewise(metric) for metric in found)


def _is_samplewise(metric: Untyped) -> bool:
    """Whether a metric sums up without a function, as Precision does, or has one that gives a value per sample."""
    function = getattr(metric, "_fn", None)
    if function is None:
        return True
    module, name = (str(getattr(function, part, "")) for part in ("__module__", "__name__"))
    last = getattr(metric, "_fn_kwargs", {}).get("axis", -1) == -1
    return last and module.startswith("keras.") and SAMPLEWISE.fullmatch(name) is not None


def _logs(model: Untyped, logs: Untyped) -> dict[str, float]:
    """Read the metrics from the device; what a step of the model's own returned wins where Keras lets it."""
    found = model.get_metrics_result()
    if logs and set(logs) != set(found):
        found = logs
    return {name: number(value) for name, value in found.items()}


def _device(model: Untyped) -> torch.device:
    """Return the device of the model's variables."""
    for variable in (*model.variables, *model.optimizer.variables):
        return torch.device(variable.value.device)
    return torch.device("cpu")


def _uncapturable(model: Untyped) -> str:
    """Return why the host must take part in each step; empty when it need not, as far as can be seen beforehand."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    rate = _rate(optimizer)
    if callable(rate) and not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return "its learning rate is a function that Python computes for each step"
    if optimizer.gradient_accumulation_steps:
        return "its optimizer accumulates gradients, which Keras decides on the host"
    if optimizer.use_ema and optimizer.ema_overwrite_frequency:
        return "its optimizer overwrites weights by their average, which Keras decides on the host"
    return "the model was compiled with run_eagerly=True" if model.run_eagerly else ""


@contextlib.contextmanager
def _updates(model: Untyped, device: torch.device) -> Iterator[None]:
    """Use the updates of `torch_updates`, and the layers of `torch_layers`, where they were tried."""
    if device.type in ("cpu", "cuda"):
        with torch_updates.in_place(model.optimizer, branchless=False), torch_layers.lean():
            yield
    else:
        yield


@contextlib.contextmanager
def _recording(model: Untyped) -> Iterator[None]:
    """Make a step capturable and short; the optimizer has no branches."""
    with torch_layers.capturable(), torch_updates.in_place(model.optimizer, branchless=True):
        yield


def _rate(optimizer: Untyped) -> Untyped:
    """Return an optimizer's learning rate as it was given: a variable, a schedule, a function."""
    return getattr(optimizer, "_learning_rate", optimizer.learning_rate)


def _fingerprint(model: Untyped) -> Untyped:
    """Return everything of a model that a graph holds fixed: addresses, and numbers of the host."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    variables = (*model.variables, *model.optimizer.variables)
    numbers = {key: value for key, value in vars(optimizer).items() if isinstance(value, (bool, int, float, str))}
    layers = [(key, value) for layer in layers_of(model) for key, value in vars(layer).items()]
    return (
        [(variable.value.data_ptr(), variable.value.requires_grad) for variable in variables],
        numbers,
        id(_rate(optimizer)),
        [item for item in layers if isinstance(item[1], float)],
    )
