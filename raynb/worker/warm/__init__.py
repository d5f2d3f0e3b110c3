"""What runs in the workers of a warm group."""
