"""What builds the documentation. Nothing of it is installed."""
