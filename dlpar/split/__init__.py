"""How one model is cut over ranks."""
