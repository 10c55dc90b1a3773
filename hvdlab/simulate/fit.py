"""Fit T = G / W + C(W) to measured times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

# C(W), as far as it is linear in what is unknown. All are zero for one worker.
TERMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "bytes": lambda w: 2 * (w - 1) / w,  # a ring's bytes: the tensor's time on the link
    "messages": lambda w: 2 * (w - 1),  # a ring's messages: the latency
    "levels": lambda w: np.log2(w),  # a tree's depth
    "several": lambda w: (w > 1).astype(float),  # the same for any number but one
}
# Student's t for 95 % and 1, 2, ... degrees of freedom; near 2 from 30 on.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)


@dataclass(frozen=True)
class Fit:
    """T = G / W + the sum of coefficient x term(W), with what is known of the coefficients."""

    names: tuple[str, ...]  # "G", then names out of TERMS
    values: np.ndarray  # seconds
    errors: np.ndarray  # standard errors, seconds; infinite where there are no repeats
    covariance: np.ndarray
    freedom: int  # measurements beyond the number of coefficients

    def predict(self, workers: int | Sequence[int]) -> np.ndarray:
        """Seconds for each number of workers."""
        return _design(self.names, workers) @ self.values

    def margin(self, workers: int | Sequence[int]) -> np.ndarray:
        """Half the width of the 95 % range of predict(), in seconds.

        It holds if the model is right, and says nothing of effects that appear only beyond
        what was measured: a network of its own, a full switch.
        """
        if self.freedom == 0:
            return np.full(np.atleast_1d(workers).shape, math.inf)
        t = _T95[self.freedom - 1] if self.freedom <= len(_T95) else 2.05
        design = _design(self.names, workers)
        return t * np.sqrt(np.einsum("ij,jk,ik->i", design, self.covariance, design))

    def efficiency(self, workers: int | Sequence[int]) -> np.ndarray:
        """T(1) / (W T(W)), 0 to 1."""
        return self.predict(1) / (np.atleast_1d(workers) * self.predict(workers))

    def __str__(self) -> str:
        parts = [
            f"{name} = {value:.4g} s (standard error {error:.2g} s)"
            if math.isfinite(error)
            else f"{name} = {value:.4g} s (error unknown: no repeats)"
            for name, value, error in zip(
                # The times that go with the terms, as the labs write C(W) = c * term.
                ["G", *(f"c ({term})" for term in self.names[1:])],
                self.values,
                self.errors,
                strict=True,
            )
        ]
        return "T(W) = G / W + C(W): " + ", ".join(parts)


def fit(workers: Sequence[int], seconds: Sequence[float], terms: Sequence[str] = ("bytes",)) -> Fit:
    """Least squares over all measurements; give repeats one by one, they make the error known.

    No part of C(W) costs less than nothing: a term that would come out negative, from noise or
    because a smaller share of the work fits the caches better, is zero, and the others are fitted
    without it. The errors stay those of the fit with all terms.

    Args:
        workers: number of workers of each measurement.
        seconds: its time, of one step, one epoch or one run.
        terms: which parts C(W) has; names out of TERMS.

    Raises:
        ValueError: lists of different length, times that aren't positive, unknown terms, or too
            few numbers of workers to tell the coefficients apart.
    """
    unknown = [name for name in terms if name not in TERMS]
    if unknown:
        raise ValueError(f"no term {unknown[0]!r}; there are {', '.join(TERMS)}")
    if len(workers) != len(seconds):
        raise ValueError(f"{len(workers)} numbers of workers, but {len(seconds)} times")
    times = np.asarray(seconds, dtype=float)
    if not np.all(np.isfinite(times) & (times > 0)) or min(workers, default=1) < 1:
        raise ValueError("times must be positive, and there must be at least one worker")
    names = ("G", *terms)
    design = _design(names, workers)
    if np.linalg.matrix_rank(design) < len(names):
        raise ValueError(
            f"{len(set(workers))} different numbers of workers can't tell {len(names)} "
            "coefficients apart: measure more of them, or use fewer terms"
        )
    values, *_ = np.linalg.lstsq(design, times, rcond=None)
    freedom = len(times) - len(names)
    residual = times - design @ values
    variance = residual @ residual / freedom if freedom else math.inf
    covariance = np.linalg.inv(design.T @ design) * (variance if freedom else 1.0)
    errors = np.sqrt(np.diag(covariance)) if freedom else np.full(len(names), math.inf)
    kept = list(range(len(names)))
    while values[1:].min(initial=0.0) < 0:
        kept.remove(1 + int(values[1:].argmin()))
        values = np.zeros(len(names))
        values[kept], *_ = np.linalg.lstsq(design[:, kept], times, rcond=None)
    return Fit(names, values, errors, covariance, freedom)


def _design(names: Sequence[str], workers: int | Sequence[int]) -> np.ndarray:
    w = np.atleast_1d(np.asarray(workers, dtype=float))
    return np.stack([1 / w if name == "G" else TERMS[name](w) for name in names], axis=1)
