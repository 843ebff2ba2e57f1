"""End-to-end tests that are generated from the registries and the documentation."""
