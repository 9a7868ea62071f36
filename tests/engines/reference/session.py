"""A perceptron on the devices of one process: forward and backward passes, SGD, and the exchange of gradients."""

from __future__ import annotations

import timeit
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from poc.data import Batch, Views
from poc.engines import Evaluation
from poc.recipe import Independent, networks
from poc.run import Run

from .hub import Hub

Layers = list[tuple[np.ndarray, np.ndarray]]
"""Of each layer the weights, (outputs, inputs), and the biases, (outputs,)."""


class NumpySession:
    """Trains `cifar_mlp`; `poc.engines.Session` says what each method has to do. Nothing is ever enqueued.

    Parameters, gradients and momentum are one long row for each device, of which the layers' are views. Each device
    computes its share of the gradient of the mean loss over the total batch, and an exchange adds the shares up. One
    CPU plays all devices of a process in turn, virtual or not.
    """

    def __init__(self, run: Run, state: Mapping[str, np.ndarray] | None) -> None:
        self._run = run
        self._hub = Hub(run.workers)
        self._sums = not isinstance(run.exchange, Independent)
        self._sizes = (int(np.prod(run.data.input_shape)), 128, 64, run.data.classes)
        self.parameters = sum((inputs + 1) * outputs for inputs, outputs in zip(self._sizes, self._sizes[1:]))
        self.gradient_bytes = 4 * self.parameters
        shape = (3, run.devices // run.workers, self.parameters)
        self._parameters, self._momentum, self._gradients = np.zeros(shape, np.float32)
        self._decay = np.zeros(self.parameters, np.float32)
        generator = np.random.default_rng(run.seed)
        for (weights, _), (decay, _) in zip(self._layers(self._parameters[0]), self._layers(self._decay)):
            # He's initialisation: Gaussian with variance 2 / inputs.
            weights[:] = generator.normal(scale=(2 / weights.shape[1]) ** 0.5, size=weights.shape)
            decay[:] = run.optimizer.weight_decay
        self._parameters[:] = self._parameters[0]
        for name, kept in (state or {}).items():
            self._named()[name][:] = kept
        self._loss, self._samples = 0.0, 0
        self._norms: list[tuple[float, float]] = []

    def _layers(self, row: np.ndarray) -> Layers:
        """The layers whose numbers lie in a long row, as views of it."""
        layers, start = [], 0
        for inputs, outputs in zip(self._sizes, self._sizes[1:]):
            end = start + inputs * outputs
            layers.append((row[start:end].reshape(outputs, inputs), row[end : end + outputs]))
            start = end + outputs
        return layers

    def _named(self) -> dict[str, np.ndarray]:
        """All that a run needs to go on, as views."""
        named = {f"momentum/{device}": row for device, row in enumerate(self._momentum)}
        for device, row in enumerate(self._parameters):
            for layer, (weights, biases) in enumerate(self._layers(row)):
                named |= {f"parameter/{layer}.weight/{device}": weights, f"parameter/{layer}.bias/{device}": biases}
        return named

    def state(self) -> dict[str, np.ndarray]:
        return {name: view.copy() for name, view in self._named().items()}

    @np.errstate(over="ignore", invalid="ignore")  # a learning rate that is too high shows in the loss
    def step(self, batch: Batch, learning_rate: float, *, exchange: bool = True, norms: bool = False) -> None:
        share = len(batch) // len(self._parameters)
        for device, (parameters, gradients) in enumerate(zip(self._parameters, self._gradients)):
            part = batch.part(device * share, (device + 1) * share)
            self._differentiate(self._layers(parameters), part, self._layers(gradients))
        squares = np.square(self._gradients).sum(axis=1).mean() if norms else 0.0
        if exchange:
            self.exchange()
        if norms and self._sums:
            small = squares * (self._run.total_batch / self._run.batch_per_device) ** 2
            self._norms.append((float(small), float(np.square(self._gradients[0]).sum())))
        # As MXNet has it, with the learning rate in the momentum.
        self._momentum *= self._run.optimizer.momentum
        self._momentum -= learning_rate * (self._gradients + self._decay * self._parameters)
        self._parameters += self._momentum

    def _differentiate(self, layers: Layers, batch: Batch, gradients: Layers) -> None:
        """Puts one device's share of the gradient into `gradients` and adds to the loss."""
        *activations, scores = self._forward(layers, batch)
        losses, gradient = _cross_entropy(scores, batch.labels)
        self._loss, self._samples = self._loss + float(losses.sum()), self._samples + len(batch)
        gradient /= self._run.total_batch
        for values, (weights, _), (of_weights, of_biases) in reversed([*zip(activations, layers, gradients)]):
            of_weights[:], of_biases[:] = gradient.T @ values, gradient.sum(axis=0)
            gradient = (gradient @ weights) * (values > 0)

    def _forward(self, layers: Layers, batch: Batch) -> list[np.ndarray]:
        """What goes into each layer, (samples, inputs), and last the scores, (samples, classes)."""
        pixels = self._cut(batch.images) if isinstance(batch.images, Views) else batch.images
        centred = pixels - np.array(networks.MEAN, np.float32).reshape(3, 1, 1)
        values = [centred.reshape(len(batch), -1) * networks.network(self._run.model).input_scale]
        for number, (weights, biases) in enumerate(layers, start=1):
            sums = values[-1] @ weights.T + biases
            values.append(np.maximum(sums, 0) if number < len(layers) else sums)
        return values

    def hold(self, images: np.ndarray) -> None:
        self._images = images

    def _cut(self, views: Views) -> np.ndarray:
        """The views, (n, 3, crop, crop), of the images that are held."""
        along = np.arange(self._run.data.crop)
        images, tops, lefts, mirrored = (
            numbers.reshape(-1, 1, 1) for numbers in (views.images, views.tops, views.lefts, views.mirrored)
        )
        columns = lefts + np.where(mirrored, along[::-1], along)
        return self._images[images, tops + along.reshape(-1, 1), columns].transpose(0, 3, 1, 2)

    def exchange(self) -> None:
        if self._sums:
            self._gradients[:] = self._hub.sum(self._gradients.sum(axis=0))

    def exchange_is_right(self) -> bool | None:
        rows = len(self._gradients)
        devices = np.arange(1, 1 + rows * self._run.workers)
        self._gradients[:] = devices[self._hub.worker * rows :][:rows, np.newaxis]
        self.exchange()
        return bool((self._gradients == devices.sum()).all()) if self._sums else None

    def barrier(self) -> None:
        self._hub.sum(np.zeros(1, np.float32))

    def exchanged(self) -> dict[str, Any]:
        return {}

    def gradient_norms(self) -> list[tuple[float, float]]:
        norms, self._norms = self._norms, []
        return norms

    def drain(self) -> float:
        mean = self._loss / self._samples if self._samples else float("nan")
        self._loss, self._samples = 0.0, 0
        return mean

    @np.errstate(over="ignore", invalid="ignore")
    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        layers = self._layers(self._parameters[0])  # the first device's; there are no batch statistics to average
        correct, samples, loss = 0, 0, 0.0
        for batch in batches:
            *_, scores = self._forward(layers, batch)
            losses, _ = _cross_entropy(scores, batch.labels)
            correct += int((scores.argmax(axis=1) == batch.labels).sum())
            samples += len(batch)
            loss += float(losses.sum())
        return Evaluation(correct=correct, samples=samples, loss=loss / samples)

    def peak_flops(self) -> float:
        size = 1024
        matrix = np.ones((size, size), np.float32)
        return 2 * size**3 / min(timeit.repeat(lambda: matrix @ matrix, repeat=6, number=1))

    def peak_device_bytes(self) -> int | None:
        return None


def _cross_entropy(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The loss of each sample, in nats, and its gradient by the scores, (samples, classes)."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    true = np.arange(len(labels)), labels.astype(int)
    gradient = np.exp(logs)
    gradient[true] -= 1
    return -logs[true], gradient
