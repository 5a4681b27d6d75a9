"""What online algorithms stand on: their agents' classes, settings, and parts that several share."""
