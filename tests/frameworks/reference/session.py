"""A perceptron on the devices of one process: forward and backward passes, SGD, and gradient synchronisation."""

from collections.abc import Iterable, Mapping

import numpy as np

from poc.config.run import Run
from poc.data import Batch, Crops
from poc.frameworks.session import Part, Session, crop_indices, fastest

from .hub import Hub

Layers = list[tuple[np.ndarray, np.ndarray]]
"""Weights, (outputs, inputs), and biases, (outputs,), of each layer."""
_quiet: np.errstate = np.errstate(over="ignore", invalid="ignore")  # a learning rate that is too high shows in the loss


class NumpySession(Session):
    """Trains `cifar_mlp`; `Session` documents the methods. Nothing is ever enqueued.

    Parameters, gradients and momentum are one long row for each device, of which the layers' are views. Each device
    computes its part of the gradient of the mean loss over the global batch, and an all-reduce sums the parts. One CPU
    computes for one device after another.
    """

    def __init__(self, run: Run, first_step: int, state: Mapping[str, np.ndarray] | None) -> None:
        super().__init__(run, first_step)
        self._hub = Hub(run.workers)
        self._worker = self._hub.worker
        self._sizes = (int(np.prod(run.data.input_shape)), 128, 64, run.data.classes)
        self.parameters = sum((inputs + 1) * outputs for inputs, outputs in zip(self._sizes, self._sizes[1:]))
        shape = (3, 1 if run.emulated else run.devices // run.workers, self.parameters)
        self._parameters, self._momentum, self._rows = np.zeros(shape, np.float32)
        self._decay = np.zeros(self.parameters, np.float32)
        generator = np.random.default_rng(run.seed)
        for (weights, _), (decay, _) in zip(self._layers(self._parameters[0]), self._layers(self._decay)):
            # He's initialisation: Gaussian with variance 2 / inputs.
            weights[:] = generator.normal(scale=(2 / weights.shape[1]) ** 0.5, size=weights.shape)
            decay[:] = run.optimizer.weight_decay
        self._parameters[:] = self._parameters[0]
        for name, array in (state or {}).items():
            self._named()[name][:] = array

    def _layers(self, row: np.ndarray) -> Layers:
        """Return the layers in a long row, as views of it."""
        layers, start = [], 0
        for inputs, outputs in zip(self._sizes, self._sizes[1:]):
            end = start + inputs * outputs
            layers.append((row[start:end].reshape(outputs, inputs), row[end : end + outputs]))
            start = end + outputs
        return layers

    def _named(self) -> dict[str, np.ndarray]:
        """Return everything that a run resumes from, as views."""
        named = {f"momentum/{device}": row for device, row in enumerate(self._momentum)}
        for device, row in enumerate(self._parameters):
            for layer, (weights, biases) in enumerate(self._layers(row)):
                named |= {f"parameter/{layer}.weight/{device}": weights, f"parameter/{layer}.bias/{device}": biases}
        return named

    def state(self) -> dict[str, np.ndarray]:
        return {name: view.copy() for name, view in self._named().items()}

    @_quiet
    def forward_backward(self, micro_batches: Iterable[list[Part]]) -> None:
        for number, parts in enumerate(micro_batches):
            with self._added_gradients(number > 0):
                self._backward(parts)

    def _backward(self, parts: list[Part]) -> None:
        for (images, labels), parameters, gradients in zip(parts, self._parameters, self._rows):
            layers = self._layers(parameters)
            *activations, scores = self._forward(layers, images)
            losses, gradient = _cross_entropy(scores, labels)
            self._add_loss(0, float(losses.sum()))
            gradient /= self._run.global_batch
            below = reversed([*zip(activations, layers, self._layers(gradients))])
            for values, (weights, _), (of_weights, of_biases) in below:
                of_weights[:], of_biases[:] = gradient.T @ values, gradient.sum(axis=0)
                gradient = (gradient @ weights) * (values > 0)

    def _gradients(self, device: int = 0) -> list[np.ndarray]:
        return [self._rows[device]]

    @_quiet
    def _squared_norm(self, device: int) -> float:
        return float(np.square(self._rows[device]).sum())

    def all_reduce_gradients(self) -> None:
        if self._run.kvstore.sums:
            self._rows[:] = self._hub.sum(self._rows.sum(axis=0))

    @_quiet
    def apply_update(self, learning_rate: float) -> None:
        # As in MXNet, with the learning rate in the momentum.
        self._momentum *= self._run.optimizer.momentum
        self._momentum -= learning_rate * (self._rows + self._decay * self._parameters)
        self._parameters += self._momentum

    def upload_images(self, images: np.ndarray) -> None:
        self._images = images

    def _upload(self, batch: Batch) -> list[Part]:
        pixels = batch.images
        if isinstance(pixels, Crops):
            indices = crop_indices(pixels, np.arange(self._run.data.crop))
            pixels = self._images[indices].transpose(0, 3, 1, 2)
        scaled = (pixels - self._pixel_mean) * self._input_scale
        devices = len(self._parameters)
        return list(zip(np.array_split(scaled, devices), np.array_split(batch.labels, devices)))

    def _forward(self, layers: Layers, images: np.ndarray) -> list[np.ndarray]:
        """Return the inputs of each layer, (samples, inputs), and last the scores, (samples, classes)."""
        values = [images.reshape(len(images), -1)]
        for number, (weights, biases) in enumerate(layers, start=1):
            sums = values[-1] @ weights.T + biases
            values.append(np.maximum(sums, 0) if number < len(layers) else sums)
        return values

    def sum_over_workers(self, values: np.ndarray) -> np.ndarray:
        return self._hub.sum(values.astype(np.float32))

    def barrier(self) -> None:
        self._hub.sum(np.zeros(1, np.float32))

    @_quiet
    def _correct_and_loss(self, images: np.ndarray, labels: np.ndarray) -> tuple[int, float]:
        *_, scores = self._forward(self._layers(self._parameters[0]), images)
        losses, _ = _cross_entropy(scores, labels)
        return int((scores.argmax(axis=1) == labels).sum()), float(losses.sum())

    def peak_flops(self) -> float:
        size = 256
        matrix = np.ones((size, size), np.float32)
        return fastest(lambda: matrix @ matrix, size)


def _cross_entropy(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of each sample, in nats, and its gradient by the scores, (samples, classes)."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    true = np.arange(len(labels)), labels.astype(int)
    gradient = np.exp(logs)
    gradient[true] -= 1
    return -logs[true], gradient
