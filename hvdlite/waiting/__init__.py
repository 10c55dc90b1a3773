"""How ranks wait for each other, and what they tell each other meanwhile."""
