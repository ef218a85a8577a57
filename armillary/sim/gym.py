"""`gymnasium.make("armillary.sim.gym:armillary/Tabletop-v0")` imports what stands before the colon.

Importing registers the environment, since that is all Gymnasium does with it; nothing else in the package
acts on import.
"""

from armillary.sim import register

register()
