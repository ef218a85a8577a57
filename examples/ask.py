"""Questions about pictures that the model has never seen, marked by the simulator that drew them."""

import armillary
from armillary.sim import episode

world = armillary.load("pocket")
right = asked = 0

for seed in range(3):
    scene = episode("still", seed, split="test")
    print(f"\nscene {seed}: {scene.caption}")
    for question in scene.questions():
        if question.kind in ("count", "colour", "shape", "where"):
            answer = world.reason(question.text, images=[scene.picture()], max_tokens=20).text
            asked, right = asked + 1, right + (answer == question.answer)
            print(f"  {question.text:45} {answer:20} ({question.answer})")

print(f"\n{right} of {asked} right")
