"""What is asked for: options and recipe files become one recipe, as text until it runs."""
