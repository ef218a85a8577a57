"""The playground in a real Chromium: asked, made, acted and looked inside; by keyboard, dark, on a phone."""

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.serve.conftest import Live

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TABS = ("ask", "make", "act", "inside")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed on this machine")


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(live: Live, browser: Browser) -> Generator[Page]:
    """The page, opened. At the end nothing was asked of another host, and nothing was complained about."""
    context = browser.new_context(viewport={"width": 1180, "height": 760}, color_scheme="light")
    page, asked, complaints = context.new_page(), list[str](), list[str]()
    page.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.goto(f"{live.url}/")
    page.wait_for_selector("html[data-ready]")
    yield page
    context.close()
    assert not [url for url in asked if not url.startswith((live.url, "blob:", "data:"))]
    assert not complaints


def test_a_question_is_answered_and_its_boxes_are_drawn(page: Page) -> None:
    page.click("#ask-scene")
    page.get_by_role("button", name="Find all objects").click()
    said = page.locator(".said .it:not(.busy)")
    expect(said).to_contain_text("bbox_2d")
    boxes = said.inner_text().count("bbox_2d")
    expect(page.locator("#ask-stage rect")).to_have_count(boxes)
    page.fill("#question", "How many objects are there?")
    page.keyboard.press("Enter")
    expect(page.locator(".said .it:not(.busy)")).to_have_count(2)
    expect(page.locator("#ask-stage rect")).to_have_count(0)


def test_the_api_is_read_on_a_page(page: Page) -> None:
    page.get_by_role("link", name="The API").click()
    page.locator("summary", has_text="POST /v1/videos/sync").click()
    expect(page.get_by_role("row", name="num_inference_steps")).to_be_visible()


def test_a_clip_takes_shape_and_is_then_asked_about(page: Page, live: Live) -> None:
    page.click("#tab-make")
    page.click("#make-go")
    expect(page.locator("#make-frame canvas")).to_be_visible()
    expect(page.locator("#make-frame video")).to_be_visible()
    page.click("#make-receipt summary")
    expect(page.locator(".receipt")).to_contain_text("defaulted")
    page.click("#make-ask")
    expect(page.locator("#ask-stage video")).to_be_visible()
    page.get_by_role("button", name="Describe this.").click()
    expect(page.locator(".said .it:not(.busy)")).to_contain_text("written")


def test_numbers_have_the_servers_own_limits(page: Page, live: Live) -> None:
    with live.http() as http:
        legal = http.get("/openapi.json").json()["components"]["schemas"]["VideosRequest"]["properties"]
    page.click("#tab-make")
    for name in ("num_frames", "num_inference_steps", "guidance_scale"):
        box = page.locator(f".slider[data-name={name}] input[type=number]")
        assert float(box.get_attribute("min") or "") == legal[name]["minimum"]
        assert float(box.get_attribute("max") or "") == legal[name]["maximum"]


def test_making_can_be_cancelled(page: Page) -> None:
    page.click("#tab-make")
    page.fill(".slider[data-name=num_inference_steps] input[type=number]", "1000")
    page.click("#make-go")
    expect(page.locator("#make-note")).to_contain_text("Step")
    page.click("#make-stop")
    expect(page.locator("#make-note")).to_have_text("Cancelled")
    expect(page.locator("#make-go")).to_be_enabled()


def test_the_imagined_world_is_steered_beside_the_real_one(page: Page) -> None:
    page.click("#tab-act")
    expect(page.locator("#instruction")).not_to_have_value("")
    look = "name => document.getElementById(name).toDataURL()"
    before = {name: page.evaluate(look, name) for name in ("imagined", "real")}
    page.focus("#imagined")
    page.keyboard.down("ArrowRight")
    expect(page.locator("#act-state")).to_contain_text("is imagined in")
    page.keyboard.up("ArrowRight")
    page.wait_for_timeout(700)
    for name, was in before.items():
        assert page.evaluate(look, name) != was


def test_the_policy_is_told_judged_and_explained(page: Page) -> None:
    page.click("#tab-act")
    expect(page.locator("#instruction")).not_to_have_value("")
    page.select_option("#candidates", "2")
    page.get_by_role("button", name="Do it").click()
    expect(page.locator("#scores .best")).to_have_count(1)
    expect(page.locator("#scores span")).to_have_count(2)
    page.click("#tab-inside")
    expect(page.locator("#inside-rows")).to_contain_text("action")
    assert page.locator("#inside-picture").evaluate(
        "picture => picture.decode().then(() => picture.naturalWidth)"
    )


def test_trouble_is_told(page: Page, tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("no picture")
    page.set_input_files("#ask-file", note)
    expect(page.locator("#trouble")).to_have_text("note.txt is neither a picture nor a clip")


def test_parts_are_reached_by_the_arrow_keys(page: Page) -> None:
    page.focus("#tab-ask")
    for name in (*TABS[1:], TABS[0]):
        page.keyboard.press("ArrowRight")
        expect(page.locator(f"#{name}")).to_be_visible()
        assert page.evaluate("document.activeElement.id") == f"tab-{name}"


def test_light_and_dark_change_and_are_remembered(page: Page) -> None:
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(paper)
    page.click("#theme")
    dark = page.evaluate(paper)
    assert dark != light
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate(paper) == dark


def test_nothing_sticks_out_on_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    for name in TABS:
        page.click(f"#tab-{name}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
