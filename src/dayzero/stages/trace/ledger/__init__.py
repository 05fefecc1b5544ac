"""Two ledgers of a release against code: where its tensors go, and which keys of its config are read."""
