"""Analysis of the draws: predictions, scores, convergence diagnostics, and findings in words."""
