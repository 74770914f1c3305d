"""What `streamtrain check-model` and `streamtrain.testing` do: a model is tried in processes of its own."""
