from tests.browser import screenshots
import pytest
pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_it(size, scheme, site, signed_in):
    if (size, scheme) in (("phone", "light"),):
        return
    window = signed_in("admin", phone=size == "phone", scheme=scheme)
    for name, path in {"plan": f"/deployments/{site.ids['draft']}/plan?story=launch", "patterns": "/patterns"}.items():
        print(name, screenshots.take(window, "fit-" + name, path, size, scheme))
    page = window.new_page()
    page.goto("/deployments/new")
    page.wait_for_selector("#fit .fit-node")
    page.fill("[name=model]", "meta-llama/Llama-3.1-70B")
    page.fill("[name=model_path]", "")
    page.fill("[name=tensor_parallel]", "2")
    page.keyboard.press("Tab")
    page.wait_for_timeout(2500)
    page.screenshot(path=screenshots.FOLDER / f"fit-new-{size}-{scheme}.png", full_page=True)
    page.fill("[name=tensor_parallel]", "1")
    page.fill("[name=max_model_len]", "100000")
    page.fill("[name=gpu_memory_utilization]", "")
    page.keyboard.press("Tab")
    page.wait_for_timeout(2500)
    page.screenshot(path=screenshots.FOLDER / f"fit-over-{size}-{scheme}.png", full_page=True)
