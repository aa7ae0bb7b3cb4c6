"""All of a learner that must survive a crash, as arrays and one plain document. Aliases nothing that lives on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import CheckpointError
from common.weights import parameter_digest
from common.wire import pack_plain, unpack_plain

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InitialWeights:
    """Parameters of another run to begin from, with a fresh optimiser.

    Attributes:
        flat: the vector, float32.
        fingerprint: of the network it belongs to.
        statistics: by which that sees observations; None where nothing is normalised.
    """

    flat: NDArray[np.float32]
    fingerprint: str
    statistics: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearnerState:
    """A learner between two updates.

    Attributes:
        updates: updates committed.
        version: last version published.
        term: the learner's term.
        parameters: the flat vector, float32.
        optimiser: arrays of the optimiser by name.
        manifest_fingerprint: of the parameters' names, shapes and order.
        intake: what the intake remembers.
        target: parameters of the target network, float32; None where the algorithm has none.
        statistics: of observations and returns, float64; None where nothing is normalised.
    """

    updates: int
    version: int
    term: int
    parameters: NDArray[np.float32]
    optimiser: dict[str, NDArray[Any]]
    manifest_fingerprint: str
    intake: dict[str, Any]
    target: NDArray[np.float32] | None = None
    statistics: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if self.target is not None and (self.target.shape, self.target.dtype) != (
            self.parameters.shape,
            np.dtype(np.float32),
        ):
            got = f"{self.target.dtype}{self.target.shape}"
            raise CheckpointError("target network", got=got, allowed=f"float32{self.parameters.shape}")

    @property
    def parameter_digest(self) -> str:
        """SHA-256 of the parameters' bytes."""
        return parameter_digest(self.parameters)

    def as_beginning(self) -> InitialWeights:
        """What another run begins from."""
        return InitialWeights(flat=self.parameters, fingerprint=self.manifest_fingerprint, statistics=self.statistics)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Arrays for the checkpoint store."""
        optimiser = {f"optimiser.{name}": array for name, array in self.optimiser.items()}
        rest = {"target": self.target, "statistics": self.statistics}
        return {
            "parameters": self.parameters,
            **{name: array for name, array in rest.items() if array is not None},
            **optimiser,
        }

    def document(self) -> bytes:
        """Everything else, packed."""
        return pack_plain(
            {
                "schema": SCHEMA,
                "updates": self.updates,
                "version": self.version,
                "term": self.term,
                "manifest_fingerprint": self.manifest_fingerprint,
                "intake": self.intake,
            },
            what="learner state",
        )

    @staticmethod
    def read(tensors: dict[str, NDArray[Any]], document: bytes) -> LearnerState:
        """The inverse of `tensors` and `document`. Raises CheckpointError on another schema or a missing part."""
        plain = unpack_plain(document, what="learner state")
        schema = plain.pop("schema", None) if isinstance(plain, dict) else None
        if schema != SCHEMA:
            raise CheckpointError(
                "learner state of another schema", got=schema, allowed=SCHEMA, fix="use the release that wrote it"
            )
        prefix = "optimiser."
        optimiser = {name.removeprefix(prefix): a for name, a in tensors.items() if name.startswith(prefix)}
        try:
            return LearnerState(
                parameters=tensors["parameters"],
                optimiser=optimiser,
                target=tensors.get("target"),
                statistics=tensors.get("statistics"),
                **plain,
            )
        except (KeyError, TypeError) as error:
            got = f"tensors {sorted(tensors)}, fields {sorted(plain)} ({error})"
            raise CheckpointError("learner state with other parts than its schema has", got=got) from error
