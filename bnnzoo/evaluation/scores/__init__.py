"""Scores of predictions on rows with known targets, and of unfamiliar inputs."""
