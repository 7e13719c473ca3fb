"""Shipped simulation profiles, as data."""
