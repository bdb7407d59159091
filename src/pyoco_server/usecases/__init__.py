"""What the product does, in terms of ports. No broker and no framework is known here."""
