"""vLLM-Omni's own requests, word for word but for the model's name, sent by curl to a real server.

    .venv/bin/python benchmarks/omni_forms.py

Its clip has 189 frames of 1280x720 in 35 steps. On a CPU no real checkpoint makes that in minutes; one with
random weights does whose video autoencoder turns 40x40 pixels, not 16x16, into one latent. Everything else
is as ever: the form, the canvas, the grid, every step with guidance, decoding, the file.
"""

import base64
import io
import json
import subprocess
import tempfile
import time
from pathlib import Path

import httpx2
from load import Server
from PIL import Image
from random_checkpoint import write_random

from armillary.codecs.audio_vae import AudioVAEConfig
from armillary.codecs.wan_vae import WanVAEConfig
from armillary.media import read_clip
from armillary.sim import episode
from armillary.train.audio import pocket_audio_config
from armillary.train.layout import pocket_config, pocket_sight_config

VIDEO = WanVAEConfig(
    latents_mean=(0.0,) * 8,
    latents_std=(1.0,) * 8,
    z_dim=8,
    base_dim=8,
    decoder_base_dim=8,
    dim_mult=(1, 1, 1, 1),
    num_res_blocks=1,
    temperal_downsample=(False, True, True),
    in_channels=75,
    out_channels=75,
    patch_size=5,
    scale_factor_spatial=40,
)
# the form of vLLM-Omni 0.30's documentation
FORM = (
    "prompt=a red disc slides right and hits the wall",
    "input_reference=@car.jpg",
    "size=1280x720",
    "num_frames=189",
    "fps=24",
    "num_inference_steps=35",
    "guidance_scale=6",
    "flow_shift=10",
    "seed=0",
    'extra_params={"use_resolution_template":false,"use_duration_template":false,"guardrails":false}',
)


def checkpoint(folder: Path) -> Path:
    sound = AudioVAEConfig.from_dict(pocket_audio_config())
    return write_random(folder, pocket_config(), pocket_sight_config(), VIDEO, sound)


def curl(*words: str, folder: Path) -> tuple[float, str]:
    """What curl prints, and how long it took."""
    began = time.perf_counter()
    made = subprocess.run(("curl", "-sS", *words), capture_output=True, text=True, check=True, cwd=folder)
    return time.perf_counter() - began, made.stdout


def clip(url: str, folder: Path) -> None:
    car = Image.fromarray(episode("push", 0, split="test").picture()).resize((1280, 720))
    car.save(folder / "car.jpg")
    fields = [word for field in FORM for word in ("-F", field)]
    told = ("-o", "made.mp4", "-w", "%{http_code} %{content_type}")
    seconds, status = curl(*told, f"{url}/v1/videos/sync", *fields, folder=folder)
    if not status.startswith("200"):
        raise SystemExit(f"{status}: {(folder / 'made.mp4').read_text()}")
    frames, height, width, _ = read_clip(folder / "made.mp4").frames.shape
    print(f"/v1/videos/sync: {status}, {frames} frames of {width}x{height} in {seconds:.0f} s")


def chat(url: str, folder: Path) -> None:
    data = io.BytesIO()
    Image.fromarray(episode("still", 3).picture()).save(data, format="JPEG")
    picture = f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"
    asked = {
        "model": httpx2.get(f"{url}/v1/models").json()["data"][0]["id"],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": picture}},
                    {"type": "text", "text": "Describe this."},
                ],
            }
        ],
        "max_tokens": 512,
    }
    (folder / "chat.json").write_text(json.dumps(asked))
    sent = ("-H", "Content-Type: application/json", "-d", "@chat.json")
    seconds, body = curl(f"{url}/v1/chat/completions", *sent, folder=folder)
    choice = json.loads(body)["choices"][0]
    print(
        f"/v1/chat/completions: {choice['finish_reason']} in {seconds:.1f} s: {choice['message']['content']}"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model, task in (("pocket", chat), (str(checkpoint(folder / "wide")), clip)):
            server = Server(model, folder / "state")
            try:
                task(server.url, folder)
            finally:
                server.kill()


if __name__ == "__main__":
    main()
