"""The `refectory` command."""
