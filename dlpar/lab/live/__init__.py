"""The figures that grow while a run goes on, one kind a module; fed by :class:`dlpar.lab.board.Board`."""
