"""Dead letters of a job, and their way back: what `streamtrain dead-letters` is made of."""
