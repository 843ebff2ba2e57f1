"""What the draws say: predictions, their scores, convergence, and findings in words."""
