"""Training: one visible loop, the losses, the data, and the recipe that makes pocket."""
