"""Secrets and variables: what is stored of them, where params name them, and how secrets are masked."""
