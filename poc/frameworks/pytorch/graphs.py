"""CUDA graphs: steps that are recorded once, and run again without Python."""

from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Any

import torch

from poc.frameworks.pytorch import is_out_of_memory
from poc.values import one_line

_STEPS_AHEAD = 2

Batch = list[list[torch.Tensor]]  # the tensors of each micro-batch of a step


class CUDAGraph:
    """Work on the current stream, not CUDA's default one, that can run again without the Python that issued it.

    Graphs may share the memory of a `pool` if no two of them run at once and none needs what another one left there.
    """

    def __init__(self, pool: Any) -> None:
        self._graph, self._pool = torch.cuda.CUDAGraph(), pool
        self._ends: deque[torch.cuda.Event] = deque()

    def record(self, work: Callable[[], None]) -> None:
        """Record `work` and run it. Raises what it raises, or what CUDA cannot record."""
        # Another thread may put batches on the card meanwhile, which the mode "global" makes an error.
        options: dict[str, Any] = {"capture_error_mode": "thread_local", "stream": torch.cuda.current_stream()}
        with torch.cuda.graph(self._graph, pool=self._pool, **options):
            work()
        self.replay()

    def replay(self) -> None:
        """Run the work again, once at most one run before it is in progress."""
        if len(self._ends) == _STEPS_AHEAD:
            self._ends.popleft().synchronize()
        self._graph.replay()
        # A thread that waits by polling would keep a core from those that make batches.
        end = torch.cuda.Event(blocking=True)
        end.record()
        self._ends.append(end)


class RecordedSteps:
    """The recorded steps of a session, one of each kind, which read their batch from memory of their own."""

    def __init__(self, new_graph: Callable[[], Any], warmup_steps: int) -> None:
        self._new_graph, self._warmup_steps = new_graph, warmup_steps
        self._eager_steps: Counter[Hashable] = Counter()
        self.recorded: dict[Any, tuple[Any, Batch]] = {}  # the graph of each kind of step, and the batch that it reads

    def is_warm(self, kind: Hashable) -> bool:
        """Count a step of this kind, and return whether it need not run eagerly any more."""
        self._eager_steps[kind] += 1
        return self._eager_steps[kind] > self._warmup_steps

    def run(self, kind: Hashable, batch: Batch, work: Callable[[Batch], None]) -> None:
        """Run `work` on a batch: record it, if it is the first of its kind, or else replay the record.

        Raises RuntimeError if it cannot be recorded, or what shows that the memory is too small. Eager steps in its
        place would be another measurement, and after a failed recording PyTorch's allocator may stay in recording mode.
        """
        if kind in self.recorded:
            graph, static_batch = self.recorded[kind]
            for tensors, values in zip(static_batch, batch):
                for tensor, value in zip(tensors, values):
                    tensor.copy_(value)
            graph.replay()
            return
        static_batch = [[tensor.clone() for tensor in tensors] for tensors in batch]
        graph = self._new_graph()
        raised: list[Exception] = []

        def recorded_work() -> None:
            try:
                work(static_batch)
            except Exception as error:
                raised.append(error)
                raise

        try:
            graph.record(recorded_work)
        except Exception as error:
            reason = raised[0] if raised else error  # the end of a failed recording fails, too
            if is_out_of_memory(reason):
                raise reason from None
            text = f"{type(reason).__name__}: {one_line(reason)}"
            raise RuntimeError(f"the step cannot be recorded as a CUDA graph: use graphs=False ({text})") from error
        self.recorded[kind] = graph, static_batch
