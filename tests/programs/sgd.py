"""Stochastic gradient descent with momentum on a small network; the digest of the final weights is its result.

Needs numpy. `PROGRAM WORKDIR STEPS`; a few steps are made at each tick.
"""

import sys
from pathlib import Path

import numpy as np
from selfcheck import Program, digest

INPUTS, HIDDEN, BATCH = 48, 64, 32
RATE, MOMENTUM = 0.01, 0.9
STEPS_A_TICK = 20


class Training:
    """Weights, velocities and the generator that draws the batches."""

    def __init__(self) -> None:
        """Weights from a fixed seed."""
        self.random = np.random.default_rng(7)
        self.steps = 0
        self.weights = [self.random.normal(size=(INPUTS, HIDDEN)) / 7, self.random.normal(size=(HIDDEN, 1)) / 8]
        self.velocities = [np.zeros_like(weight) for weight in self.weights]

    def step(self) -> None:
        """One batch forward and back."""
        inputs = self.random.normal(size=(BATCH, INPUTS))
        wanted = np.sin(inputs.sum(axis=1, keepdims=True))
        hidden = np.tanh(inputs @ self.weights[0])
        error = (hidden @ self.weights[1] - wanted) / BATCH
        gradients = [inputs.T @ (error @ self.weights[1].T * (1 - hidden**2)), hidden.T @ error]
        for weight, velocity, gradient in zip(self.weights, self.velocities, gradients, strict=True):
            velocity *= MOMENTUM
            velocity -= RATE * gradient
            weight += velocity
        self.steps += 1

    def digest(self) -> str:
        """Return the digest of all weights, bit for bit."""
        return digest(b"".join(weight.tobytes() for weight in self.weights))


def main() -> None:
    """Train; then keep the result among the facts until the end."""
    program = Program(Path(sys.argv[1]))
    last = int(sys.argv[2])
    training = Training()

    def step() -> None:
        for _ in range(min(STEPS_A_TICK, last - training.steps)):
            training.step()
        if training.steps == last:
            program.facts["weights"] = training.digest()

    program.run(step, lambda: training.steps == last)


if __name__ == "__main__":
    main()
