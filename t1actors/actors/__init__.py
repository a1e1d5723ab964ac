"""The seven actors, a file each: thin folds of the log that turn events into calls on the floors below and results into
events. Importing this package imports no actor (only the sampler, the critic and the actor need torch)."""
