"""What a Ray cluster has: asked with a deadline, since Ray's own questions wait for ever if an answer is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import TypeVar

import ray

from common.errors import DeadlineError, OutputError

ASK_S = 10.0  # an answer takes milliseconds
ASK_TIMES = 3

Resources = Mapping[str, float]
T = TypeVar("T")


def has_free_cpu() -> bool:
    """Whether the cluster has a CPU that is nobody's: one more of our processes would be given its place."""
    return free_cpus() >= 1.0


def free_cpus() -> float:
    """CPUs of the cluster that are nobody's. Raises DeadlineError where its head is silent."""
    return ask(_available).get("CPU", 0.0)


def gpus_of_a_rank(device: str, num_ranks: int) -> int:
    """1 where every learner rank can have a GPU of its own, else 0: ranks of one group compute on equal devices.

    Raises:
        OutputError: `device` is "cuda", and the cluster has fewer GPUs than ranks.
    """
    available = int(ask(_total).get("GPU", 0))
    if device == "cuda" and available < num_ranks:
        raise OutputError(
            "the Ray cluster has too few GPUs for learner.device = cuda",
            got=f"{available} GPUs",
            allowed=f"at least {num_ranks}: one for each learner rank",
            fix="use fewer --learners, or learner.device = auto, which falls back to the CPU",
        )
    return 1 if device != "cpu" and available >= num_ranks else 0


def ask(question: Callable[[], T], *, within_s: float = ASK_S) -> T:
    """The answer, asked again where none came in time; who waits for a lost one is left behind, asleep.

    Raises:
        DeadlineError: no answer, however often it was asked.
    """
    for _ in range(ASK_TIMES):
        answers: SimpleQueue[T | Exception] = SimpleQueue()
        threading.Thread(target=_answer, args=(question, answers), name="ask-ray", daemon=True).start()
        try:
            answer = answers.get(timeout=within_s)
        except Empty:
            continue
        if isinstance(answer, Exception):
            raise answer
        return answer
    raise DeadlineError(
        "the Ray cluster does not say what it has",
        got=f"no answer, asked {ASK_TIMES} times",
        allowed=f"an answer within {within_s:g} s",
        fix="see whether its head node is alive: ray status",
    )


def _answer(question: Callable[[], T], answers: SimpleQueue[T | Exception]) -> None:
    try:
        answers.put(question())
    except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
        answers.put(error)


def _total() -> Resources:
    total: Resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return total


def _available() -> Resources:
    available: Resources = ray.available_resources()  # type: ignore[no-untyped-call]
    return available
