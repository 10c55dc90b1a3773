"""Slurm for the course: a small cluster on one machine, its bad luck, and sbatch files."""
