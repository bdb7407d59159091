"""Submit, cancel, read and watch runs."""
