"""A run's numbers for TensorBoard, W&B and whoever implements `Writer`; nothing of a run waits for them.

Record ──row──► Feed ──scalars──► an outbox and a thread for each writer ──► TensorBoardWriter, WandbWriter, yours
registry ──rows──► export ──scalars──► the same writers, after the fact
"""
