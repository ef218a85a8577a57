"""Jobs: made while nobody waits, followed, cancelled, kept over a restart, and the forms of vLLM-Omni."""

import base64
import io
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import openai
import pytest
from PIL import Image

from armillary.media import Clip, read_clip
from armillary.serve.settings import Settings
from armillary.serve.store import Job, Store
from armillary.sim import episode
from armillary.world import World
from tests.serve.conftest import Live, Start
from tests.serve.test_contract import data_uri

PROMPT = "a red disc slides right"


def ended(live: Live, video_id: str) -> dict:
    with live.http() as http:
        for _ in range(600):
            found = http.get(f"/v1/videos/{video_id}").json()
            if found["status"] not in ("queued", "in_progress"):
                return found
            time.sleep(0.05)
    pytest.fail("it never ends")


@pytest.mark.filterwarnings("ignore:The Sora API")
def test_openais_client_makes_polls_fetches_and_deletes(live: Live, world: World, tmp_path: Path) -> None:
    client = live.openai()
    video = client.videos.create(model="pocket", prompt=PROMPT, size="64x64", extra_body={"num_frames": 5})
    assert video.status in ("queued", "in_progress")
    video = client.videos.poll(video.id, poll_interval_ms=50)
    assert (video.status, video.progress, video.size) == ("completed", 100, "64x64")
    client.videos.download_content(video.id).write_to_file(tmp_path / "made.mp4")
    world.generate(PROMPT, frames=5).save(tmp_path / "alone.mp4")
    assert (read_clip(tmp_path / "made.mp4").frames == read_clip(tmp_path / "alone.mp4").frames).all()
    assert video.id in [v.id for v in client.videos.list()]
    assert client.videos.delete(video.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.videos.retrieve(video.id)


def test_the_form_of_vllm_omni_is_answered_with_the_clip(live: Live, world: World, tmp_path: Path) -> None:
    """The request of that project's documentation, with our model's size and fewer frames."""
    push = episode("push", 0, split="test")
    Clip(push.frames, push.fps).save(tmp_path / "car.mp4")
    form = {
        "prompt": (None, PROMPT),
        "size": (None, "64x64"),
        "num_frames": (None, "9"),
        "fps": (None, "8"),
        "num_inference_steps": (None, "3"),
        "guidance_scale": (None, "6"),
        "flow_shift": (None, "10"),
        "seed": (None, "0"),
        "extra_params": (
            None,
            json.dumps(
                {"use_resolution_template": False, "use_duration_template": False, "guardrails": False}
            ),
        ),
        "input_reference": ("car.mp4", (tmp_path / "car.mp4").read_bytes(), "video/mp4"),
    }
    with live.http() as http:
        made = http.post("/v1/videos/sync", files=form)
    assert made.status_code == 200, made.text
    assert made.headers["content-type"] == "video/mp4"
    assert made.headers["x-model"] == "pocket"
    clip = world.generate(
        PROMPT, video=Clip(push.frames, push.fps), frames=9, steps=3, guidance=6, shift=10, verbatim=True
    )
    assert read_clip(made.content).frames.shape == clip.frames.shape == (9, 64, 64, 3)


def test_the_form_of_vllm_omni_is_understood_to_its_last_field(live: Live) -> None:
    """Word for word, 189 frames of 1280x720 in 35 steps; on a CPU that takes long, so it is laid out only."""
    said = {"prompt": PROMPT, "size": "1280x720", "num_frames": 189, "fps": 24, "num_inference_steps": 35,
            "guidance_scale": 6, "flow_shift": 10, "seed": 0}  # fmt: skip
    extra = {"use_resolution_template": False, "use_duration_template": False, "guardrails": False}
    form = {name: (None, str(value)) for name, value in said.items()}
    form["extra_params"] = (None, json.dumps(extra))
    picture = base64.b64decode(data_uri(episode("push", 0, split="test").picture()).partition(",")[2])
    with live.http() as http:
        laid = http.post("/v1/explain/videos", files={**form, "input_reference": ("car.jpg", picture)})
    assert laid.status_code == 200, laid.text
    noisy = [row for row in laid.json()["rows"] if row["state"] == "noisy"]
    assert {row["sample"] for row in noisy} == {"request", "negative"}
    assert (noisy[0]["height"], noisy[0]["width"]) == ([0, 44], [0, 79])  # 1280x720 in sixteenths


def test_a_job_tells_its_steps_and_its_end(live: Live) -> None:
    with live.http() as http:
        job = http.post("/v1/videos", json={"prompt": PROMPT, "num_inference_steps": 4}).json()
        with http.stream("GET", f"/v1/videos/{job['id']}/events") as events:
            lines = [line for line in events.iter_lines() if line.startswith(("event", "data"))]
    names, data = lines[::2], [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert set(names[:-1]) == {"event: progress"}
    assert names[-1] == "event: completed"
    steps = [told["step"] for told in data[:-1]]
    assert steps == sorted(steps)
    assert data[-2]["of"] == 4
    assert data[-1]["id"] == job["id"]


def test_cancelling_stops_within_a_step_and_the_next_job_is_made(live: Live) -> None:
    worker = live.service.worker
    with live.http() as http:
        first = http.post("/v1/videos", json={"prompt": PROMPT, "num_inference_steps": 1000}).json()
        second = http.post("/v1/videos", json={"prompt": PROMPT, "num_inference_steps": 1000}).json()
        third = http.post("/v1/videos", json={"prompt": PROMPT, "num_inference_steps": 2}).json()
        assert http.get(f"/v1/videos/{second['id']}").json()["status"] == "queued"
        assert http.delete(f"/v1/videos/{second['id']}").json()["deleted"]
        while http.get(f"/v1/videos/{first['id']}").json()["status"] == "queued":
            time.sleep(0.01)
        stopped = http.post(f"/v1/videos/{first['id']}/cancel").json()
        steps = worker.steps
        assert stopped["status"] == "cancelled"
        assert ended(live, third["id"])["status"] == "completed"
        assert steps <= worker.steps <= steps + 2  # the third may have begun before they were counted
        assert http.get(f"/v1/videos/{first['id']}/content").status_code == 410


def test_an_idempotency_key_names_one_job(live: Live) -> None:
    key, body = {"Idempotency-Key": "one"}, {"prompt": PROMPT, "num_inference_steps": 1}
    with live.http() as http:
        first, again = (http.post("/v1/videos", json=body, headers=key).json()["id"] for _ in range(2))
        other = http.post("/v1/videos", json={**body, "seed": 1}, headers=key)
    assert first == again
    assert other.status_code == 409


def test_a_job_goes_on_when_its_client_has_left(live: Live) -> None:
    with live.http() as http:
        job = http.post("/v1/videos", json={"prompt": PROMPT, "num_inference_steps": 2}).json()
    assert ended(live, job["id"])["status"] == "completed"


def test_leaving_a_request_that_waits_stops_its_steps(live: Live) -> None:
    worker, before = live.service.worker, live.service.worker.steps
    with live.http() as http, pytest.raises(Exception, match="timed out"):
        http.post("/v1/images/generations", json={"prompt": PROMPT, "num_inference_steps": 1000}, timeout=1)
    for _ in range(100):
        seen = worker.steps
        time.sleep(0.2)
        if worker.steps == seen:
            break
    assert 0 < worker.steps - before < 500


def test_what_waited_is_made_after_a_restart_and_what_ran_goes_back(start: Start, world: World) -> None:
    with start(grace_s=0.1) as live, live.http() as http:
        endless = {"prompt": PROMPT, "num_inference_steps": 1000, "size": "128x128", "num_frames": 17}
        long = http.post("/v1/videos", json=endless).json()["id"]
        short = http.post("/v1/videos", json={"prompt": PROMPT, "num_inference_steps": 2}).json()["id"]
        while http.get(f"/v1/videos/{long}").json()["status"] == "queued":
            time.sleep(0.01)
    with start() as live, live.http() as http:
        assert http.get(f"/v1/videos/{long}").json()["status"] in ("queued", "in_progress")
        http.delete(f"/v1/videos/{long}")
        assert ended(live, short)["status"] == "completed"


def test_history_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(Settings(tmp_path, max_jobs=10, keep_s=1000, max_disk=35))
    for number in range(1000):
        store.write(str(number), {"x": b"12345"})
        store.add(a_job(str(number)), None)
        store.start(str(number))
        with monkeypatch.context() as patched:
            if number == 995:  # ended long ago
                patched.setattr("armillary.serve.store.time.time", lambda: 5.0)
            store.end(str(number), "done", made={"file": "x"})
        if number % 100 == 99:
            store.sweep()
    kept = [job.id for job in store.page(after=None, limit=100, newest_first=True)]
    assert kept == ["999", "998", "997", "996", "994", "993", "992"]  # seven times five bytes, none expired
    assert len(list((tmp_path / "jobs").iterdir())) == 7
    store.close()


def test_a_job_that_takes_longer_than_results_are_kept_is_shown_and_kept(tmp_path: Path) -> None:
    store = Store(Settings(tmp_path, keep_s=1000))
    store.write("long", {})
    store.add(a_job("long", expires=5), None)
    store.start("long")
    store.sweep()
    assert store.get("long") is not None
    assert [job.id for job in store.page(after=None, limit=9, newest_first=True)] == ["long"]
    store.end("long", "done", made={})
    store.sweep()
    assert (store.get("long") or a_job("")).state == "done"
    store.close()


def test_after_a_crash_no_job_is_lost_or_shown_running(tmp_path: Path) -> None:
    store = Store(Settings(tmp_path))
    for name in ("waited", "ran", "made", "emptied"):
        store.write(name, {"given-0": b"private"})
        store.add(a_job(name), None)
    store.start("ran")
    (store.folder("ran") / "made.mp4").write_bytes(b"half")
    store.start("emptied")
    shutil.rmtree(store.folder("emptied"))
    store.start("made")
    store.end("made", "done", made={})
    (tmp_path / "jobs" / "half").mkdir()
    os.utime(tmp_path / "jobs" / "half", (0, 0))  # written, and never stored
    store.close()  # nothing is written then: it is as if the process had been killed
    store = Store(Settings(tmp_path))
    assert [job.id for job in store.recover()] == ["waited"]
    found = {job.id: job for job in store.page(after=None, limit=9, newest_first=False)}
    assert {name: job.state for name, job in found.items()} == {
        "waited": "queued",
        "ran": "failed",
        "made": "done",
        "emptied": "failed",
    }
    assert "server ended" in (found["ran"].error or {})["message"]
    assert [f.name for f in store.folder("waited").iterdir()] == ["given-0"]
    assert not list(store.folder("ran").iterdir())
    store.sweep()
    assert not (tmp_path / "jobs" / "half").exists()
    store.close()


def a_job(name: str, expires: float = 2e9) -> Job:
    return Job(name, "me", "generate", {}, {}, "queued", 1.0, None, None, expires, None, None, "x")


def test_forward_dynamics_is_a_job_too(live: Live, world: World) -> None:
    push = episode("push", 0, split="test")
    actions = push.actions.tolist()
    extra = {"action_mode": "forward_dynamics", "domain_name": "tabletop", "action": actions}
    with live.http() as http:
        kept = http.post("/v1/files", files={"file": ("a.png", png(push.picture()))}).json()["id"]
        body = {"prompt": "", "image_reference": {"file_id": kept}, "extra_params": extra}
        made = http.post("/v1/videos/sync", json=body)
        assert made.status_code == 200, made.text
    alone = world.forward_dynamics(push.picture(), push.actions, domain="tabletop")
    assert read_clip(made.content).frames.shape == alone.frames.shape


def test_a_clip_follows_a_control(live: Live) -> None:
    out = io.BytesIO()
    push = episode("push", 0, split="test")
    frames = [Image.fromarray(frame) for frame in push.frames]
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=125)
    uri = f"data:image/gif;base64,{base64.b64encode(out.getvalue()).decode()}"
    extra = {"edge": {"control_path": uri, "preset_edge_threshold": "low"}, "control_guidance": 1.5}
    body = {"prompt": PROMPT, "num_inference_steps": 1, "extra_params": extra}
    with live.http() as http:
        made = http.post("/v1/videos", json=body).json()
    told = ended(live, made["id"])
    assert told["status"] == "completed", told
    assert told["receipt"]["used"]["control_guidance"] == 1.5
    assert told["receipt"]["used"]["controls"]["edge"]["strength"] == "low"


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"sound_gen": "/etc/passwd"}, "extra_params.sound_gen"),
        ({"action_mode": "forward_dynamics", "action": "/etc/passwd"}, "extra_params.action"),
        ({"action_mode": "policy", "domain_name": "/tmp/robot.toml"}, "extra_params.domain_name"),
        ({"edge": {"control_path": "/etc/passwd"}}, "extra_params.edge.control_path"),
        ({"edge": "/etc/passwd"}, "extra_params.edge"),
        ({"num_frames": "5"}, "extra_params.num_frames"),
        ({"guardrails": True}, "extra_params.guardrails"),
        ({"use_duration_template": False}, "extra_params.use_resolution_template"),
        ({"nothing": 1}, "extra_params.nothing"),
    ],
)
def test_extra_parameters_are_used_or_refused_by_name_and_open_no_file(
    live: Live, extra: dict, param: str
) -> None:
    with live.http() as http:
        body = {"prompt": PROMPT, "extra_params": extra, "num_inference_steps": 1}
        if extra.get("action_mode"):
            picture = base64.b64encode(png(episode("push", 0).picture())).decode()
            body["image_reference"] = f"data:image/png;base64,{picture}"
        refused = http.post("/v1/videos", json=body)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == param


def png(picture_HW3: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture_HW3).save(out, "PNG")
    return out.getvalue()
