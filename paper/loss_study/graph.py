"""Loss and gradients of a batch by replaying a recorded CUDA graph.

A small network on a GPU waits for its hundreds of launches more than for its arithmetic. Recorded once, a step is one
launch, and several processes can share a device without waiting for each other's launches. The arithmetic is that of
the plain step. Batches must be of one size. A recording cannot look at values: the loss checks its input on the first,
plain steps only.
"""

import torch
from torch import Tensor, nn

# Plain steps before the recording, in which libraries choose and load their kernels.
PLAIN_STEPS = 3


class GraphedGradients:
    """Returns the loss of a batch and leaves its gradients in the parameters.

    Args:
        network: the module that is trained, on a CUDA device.
        loss: maps logits and labels to a scalar.
        half: the type of mixed precision, or None without it.
    """

    def __init__(self, network: nn.Module, loss: nn.Module, half: torch.dtype | None = None) -> None:
        self.network, self.loss, self.half = network, loss, half
        self._side = torch.cuda.Stream()
        self._plain = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._images = self._labels = self._value = torch.empty(0)

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        if self._plain < PLAIN_STEPS:
            self._plain += 1
            return self._on_the_side(images, labels)
        if self._graph is None:
            self._record(images, labels)
        assert self._graph is not None
        self._images.copy_(images)
        self._labels.copy_(labels)
        self._graph.replay()
        return self._value.clone()

    def _compute(self, images: Tensor, labels: Tensor) -> Tensor:
        # Weights in half precision are kept for one pass only: a recording must convert them every time.
        with torch.autocast("cuda", self.half, enabled=self.half is not None, cache_enabled=False):
            logits = self.network(images)
        value = self.loss(logits, labels)
        value.backward()
        return value

    def _forget(self) -> None:
        for parameter in self.network.parameters():
            parameter.grad = None

    def _on_the_side(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take a plain step on a stream of its own, as a recording must not follow work on the main one."""
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            self._forget()
            value = self._compute(images, labels).detach()
        torch.cuda.current_stream().wait_stream(self._side)
        return value

    def _record(self, images: Tensor, labels: Tensor) -> None:
        self._images, self._labels = images.clone(), labels.clone()
        self._forget()  # so that the recording writes gradients and does not add to them
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._value = self._compute(self._images, self._labels).detach()
