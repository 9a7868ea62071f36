"""A perceptron on the devices of one process: forward and backward passes, SGD, and the exchange of gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from poc.config import networks
from poc.config.run import Run
from poc.data import Batch, Crops
from poc.frameworks.session import Part, Session, fastest

from .hub import Hub

Layers = list[tuple[np.ndarray, np.ndarray]]
"""Of each layer the weights, (outputs, inputs), and the biases, (outputs,)."""
_quiet: np.errstate = np.errstate(over="ignore", invalid="ignore")  # a learning rate that is too high shows in the loss


class NumpySession(Session):
    """Trains `cifar_mlp`; `Session` says what each method has to do. Nothing is ever enqueued.

    Parameters, gradients and momentum are one long row for each device, of which the layers' are views. Each device
    computes its share of the gradient of the mean loss over the total batch, and an exchange adds the shares up. One
    CPU plays all devices of a process in turn, emulated or not.
    """

    def __init__(self, run: Run, first_step: int, state: Mapping[str, np.ndarray] | None) -> None:
        super().__init__(run, first_step)
        self._hub = Hub(run.workers)
        self._worker = self._hub.worker
        self._sizes = (int(np.prod(run.data.input_shape)), 128, 64, run.data.classes)
        self.parameters = sum((inputs + 1) * outputs for inputs, outputs in zip(self._sizes, self._sizes[1:]))
        shape = (3, run.devices // run.workers, self.parameters)
        self._parameters, self._momentum, self._gradients = np.zeros(shape, np.float32)
        self._decay = np.zeros(self.parameters, np.float32)
        generator = np.random.default_rng(run.seed)
        for (weights, _), (decay, _) in zip(self._layers(self._parameters[0]), self._layers(self._decay)):
            # He's initialisation: Gaussian with variance 2 / inputs.
            weights[:] = generator.normal(scale=(2 / weights.shape[1]) ** 0.5, size=weights.shape)
            decay[:] = run.optimizer.weight_decay
        # All workers start from the weights of the first one.
        self._parameters[:] = self._hub.sum(self._parameters[0] * (self._worker == 0))
        for name, kept in (state or {}).items():
            self._named()[name][:] = kept

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

    @_quiet
    def _backward(self, batch: Batch, *, exchange: bool, norms: bool) -> Sequence[float]:
        for part, parameters, gradients in zip(self.placed(batch).parts, self._parameters, self._gradients):
            self._differentiate(part, self._layers(parameters), self._layers(gradients))
        return [float(np.square(row).sum()) for row in self._gradients] if norms else []

    @_quiet
    def _squares(self) -> float:
        return float(np.square(self._gradients[0]).sum())

    @_quiet
    def _update(self, learning_rate: float, *, exchange: bool, together: bool) -> None:
        if exchange:
            self.exchange()
        # As MXNet has it, with the learning rate in the momentum.
        self._momentum *= self._run.optimizer.momentum
        self._momentum -= learning_rate * (self._gradients + self._decay * self._parameters)
        self._parameters += self._momentum

    def _differentiate(self, part: Part, layers: Layers, gradients: Layers) -> None:
        """Puts one device's share of the gradient into `gradients` and adds to the loss."""
        images, labels = part
        *activations, scores = self._forward(layers, images)
        losses, gradient = _cross_entropy(scores, labels)
        self._lost(0, float(losses.sum()))
        gradient /= self._run.global_batch
        for values, (weights, _), (of_weights, of_biases) in reversed([*zip(activations, layers, gradients)]):
            of_weights[:], of_biases[:] = gradient.T @ values, gradient.sum(axis=0)
            gradient = (gradient @ weights) * (values > 0)

    def _on_devices(self, batch: Batch) -> list[Part]:
        pixels = self._cut(batch.images) if isinstance(batch.images, Crops) else batch.images
        centred = pixels - np.array(networks.MEAN, np.float32).reshape(3, 1, 1)
        scaled = centred * self._scale
        devices = len(self._parameters)
        return list(zip(np.array_split(scaled, devices), np.array_split(batch.labels, devices)))

    def _forward(self, layers: Layers, images: np.ndarray) -> list[np.ndarray]:
        """What goes into each layer, (samples, inputs), and last the scores, (samples, classes)."""
        values = [images.reshape(len(images), -1)]
        for number, (weights, biases) in enumerate(layers, start=1):
            sums = values[-1] @ weights.T + biases
            values.append(np.maximum(sums, 0) if number < len(layers) else sums)
        return values

    def hold(self, images: np.ndarray) -> None:
        self._images = images

    def _cut(self, views: Crops) -> np.ndarray:
        """The views, (n, 3, crop, crop), of the images that are held."""
        along = np.arange(self._run.data.crop)
        images, tops, lefts, mirrored = (
            numbers.reshape(-1, 1, 1) for numbers in (views.images, views.tops, views.lefts, views.flipped)
        )
        columns = lefts + np.where(mirrored, along[::-1], along)
        return self._images[images, tops + along.reshape(-1, 1), columns].transpose(0, 3, 1, 2)

    def exchange(self) -> None:
        if self._sums:
            self._gradients[:] = self._hub.sum(self._gradients.sum(axis=0))

    def sync_is_correct(self) -> bool | None:
        rows = len(self._gradients)
        devices = np.arange(1, 1 + rows * self._run.workers)
        self._gradients[:] = devices[self._hub.worker * rows :][:rows, np.newaxis]
        self.exchange()
        return bool((self._gradients == devices.sum()).all()) if self._sums else None

    def barrier(self) -> None:
        self._hub.sum(np.zeros(1, np.float32))

    @_quiet
    def _scores(self, images: np.ndarray) -> np.ndarray:
        *_, scores = self._forward(self._layers(self._parameters[0]), images)
        return scores

    def _tally(self, scores: np.ndarray, labels: np.ndarray) -> tuple[int, float]:
        losses, _ = _cross_entropy(scores, labels)
        return int((scores.argmax(axis=1) == labels).sum()), float(losses[labels >= 0].sum())

    def peak_flops(self) -> float:
        size = 1024
        matrix = np.ones((size, size), np.float32)
        return fastest(lambda: matrix @ matrix, size)


def _cross_entropy(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The loss of each sample, in nats, and its gradient by the scores, (samples, classes)."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    true = np.arange(len(labels)), labels.astype(int)
    gradient = np.exp(logs)
    gradient[true] -= 1
    return -logs[true], gradient
