"""What tests share: small real parts, ready to use. Imported by tests only."""
