"""The adapter to pyoco. Nothing else imports it."""
