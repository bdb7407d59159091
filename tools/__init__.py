"""What builds the documentation. Not part of the installed package."""
