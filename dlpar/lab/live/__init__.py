"""Figures that grow during a run, one kind per module; :class:`dlpar.lab.board.Board` passes records to them."""
