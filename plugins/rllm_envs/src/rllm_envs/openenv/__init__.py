"""Environments of OpenEnv, whose servers are reached by address or started here."""
