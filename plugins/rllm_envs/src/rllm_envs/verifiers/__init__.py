"""The environments of verifiers, whose model calls go through sessions of the gateway."""
