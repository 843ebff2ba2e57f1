"""The sampling loop: chunks, warm-up, and the carry from one chunk to the next."""
