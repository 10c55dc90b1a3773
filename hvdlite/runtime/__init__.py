"""This process as a rank: its settings, the launcher that started it, its world, and its end."""
