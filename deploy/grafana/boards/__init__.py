"""The boards, as data."""

from __future__ import annotations

from deploy.grafana.boards import actors, integrity, learner, overview, stability
from deploy.grafana.boards.board import Board

BOARDS: tuple[Board, ...] = (overview.BOARD, actors.BOARD, learner.BOARD, integrity.BOARD, stability.BOARD)
