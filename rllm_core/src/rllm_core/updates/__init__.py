"""What backends share in torch: losses, their terms and aggregation, minibatches, learning rate."""
