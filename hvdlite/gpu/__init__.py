"""Arrays in a GPU's memory, and collectives on them."""
