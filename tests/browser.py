"""Pages in a headless browser."""

import shutil
import subprocess

import pytest

FRAME = """<!doctype html><meta name="color-scheme" content="light dark"><pre id="measured"></pre><script>
window.addEventListener("message", function (event) {
  document.getElementById("measured").textContent = JSON.stringify(event.data);
});
</script><iframe src="PAGE" style="border: 0; width: WIDTHpx; height: 2000px"></iframe>"""


def browse(page, tmp_path, width, *options):
    """Open the page in a frame of that width, for a window of a browser is at least 500 px wide."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on this machine to open the page in")
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.replace("PAGE", page.as_uri()).replace("WIDTH", str(width)))
    quiet = "--no-first-run --disable-background-networking --disable-component-update --disable-sync --disable-quic"
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", *quiet.split(), "--enable-logging=stderr"]
    command += ["--v=0", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1500,2000", "--dump-dom", *options]
    return subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True)
