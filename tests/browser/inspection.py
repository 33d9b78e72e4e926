"""JavaScript with which the tests inspect a page in the browser."""

from __future__ import annotations

# Every visible text with its contrast by the WCAG formula. Colours are painted on a canvas and read
# back as bytes, backgrounds from the outermost element inwards.
CONTRASTS = """() => {
  const UNREAD = ":disabled, noscript, title, select"; // a select's options are the browser's
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const brush = canvas.getContext("2d", { willReadFrequently: true });
  const painted = (colours) => {
    for (const colour of colours) {
      brush.fillStyle = colour;
      brush.fillRect(0, 0, 1, 1);
    }
    return brush.getImageData(0, 0, 1, 1).data;
  };
  const luminance = (bytes) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, at) => {
    const share = bytes[at] / 255;
    return sum + weight * (share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4);
  }, 0);
  const grounds = (element) => {
    const found = [];
    for (let one = element; one; one = one.parentElement) {
      const style = getComputedStyle(one);
      const frame = one.matches("g.node") ? getComputedStyle(one.querySelector("rect")).fill : null;
      found.unshift(frame && frame !== "none" ? frame : style.backgroundColor);
    }
    return found;
  };
  const told = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest(UNREAD)) continue;
    const style = getComputedStyle(element);
    const under = grounds(element);
    const ink = element.namespaceURI.endsWith("svg") ? style.fill : style.color;
    const [one, other] = [luminance(painted([...under, ink])), luminance(painted(under))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    told.push([element.outerHTML.slice(0, 80), ratio]);
  }
  return told;
}"""

# Elements that moved by themselves, with the browser's layout shift score.
SHIFTS = """() => new Promise((resolve) => {
  const told = [];
  new PerformanceObserver((list) => {
    for (const shift of list.getEntries().filter((one) => !one.hadRecentInput)) {
      for (const { node } of shift.sources) told.push([shift.value, node?.outerHTML ?? node?.data]);
    }
  }).observe({ type: "layout-shift", buffered: true });
  setTimeout(() => resolve(told), 100);
})"""

# Focusable elements without a name for screen readers.
NAMELESS = """() => [...document.querySelectorAll("input, select, textarea, button, [tabindex]")]
  .filter((one) => !(one.labels?.length || one.getAttribute("aria-label") ||
    one.getAttribute("aria-labelledby") || (one.matches("button") && one.textContent.trim())))
  .map((one) => one.outerHTML)"""
