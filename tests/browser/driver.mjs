// Opens a page from its file in a headless Chromium, and says what a reader would find.
//
//   node driver.mjs FILE [FOLDER for screenshots] > found.json
//
// found.json: {"390-light": FOUND, "390-dark": FOUND, "1200-light": FOUND, "1200-dark": FOUND}
// FOUND: {"requests": URLs other than the file and data:, "errors": texts of the console and of exceptions,
//         "wider": what is wider than the screen and does not scroll by itself, "colors": [of the paper, of the text],
//         "stops": [{"tag", "name", "outlined"}, ...] that the Tab key reaches, "names": [{"role", "name"}, ...] of the
//         accessibility tree, "opened": [number of <details> that the Enter key opened, number of all],
//         "printed": what is wider than a sheet of A4,
//         "tip": what a mark says after an arrow key, "sorted": whether a click on a column's head sorts it}
//
// WABAC_DIR names the folder with node_modules, CHROMIUM_BIN the browser.

import { mkdtemp, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const puppeteer = createRequire(join(resolve(process.env.WABAC_DIR), "package.json"))("puppeteer-core");
const address = pathToFileURL(resolve(process.argv[2])).href;
const screenshots = process.argv[3];

function wider() {
  const scrolls = (element) => element && (["auto", "scroll"].includes(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
  return [...document.querySelectorAll("body *:not(.skip)")]
    .filter((element) => element.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && !scrolls(element.parentElement))
    .map((element) => element.outerHTML.slice(0, 200))
    .concat(document.documentElement.scrollWidth > innerWidth ? [`the page: ${document.documentElement.scrollWidth}`] : []);
}

function focused() {
  const element = document.activeElement;
  const style = getComputedStyle(element);
  const isMark = element instanceof SVGElement;
  return {
    tag: element.tagName.toLowerCase(),
    name: element.getAttribute("aria-label") ?? element.textContent.trim().slice(0, 80),
    outlined: isMark ? style.stroke !== "none" && parseFloat(style.strokeWidth) >= 2
      : style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
  };
}

function named(tree, found = []) {
  found.push({ role: tree.role, name: tree.name ?? "" });
  for (const child of tree.children ?? []) named(child, found);
  return found;
}

async function look(browser, width, scheme) {
  const tab = await browser.newPage();
  const found = { requests: [], errors: [] };
  tab.on("request", (request) => {
    if (request.url() !== address && !request.url().startsWith("data:")) found.requests.push(request.url());
  });
  tab.on("console", (message) => {
    if (["error", "warn"].includes(message.type())) found.errors.push(message.text());
  });
  tab.on("pageerror", (error) => found.errors.push(String(error)));
  await tab.setViewport({ width, height: 900 });
  await tab.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await tab.goto(address, { waitUntil: "load" });
  if (screenshots) await tab.screenshot({ path: join(screenshots, `${width}-${scheme}.png`), fullPage: true });
  found.wider = await tab.evaluate(wider);
  found.colors = await tab.evaluate(() => {
    const style = getComputedStyle(document.body);
    return [style.backgroundColor, style.color];
  });
  found.stops = [];
  const limit = await tab.evaluate(() => 2 * document.querySelectorAll("a, summary, button, [tabindex='0']").length + 5);
  for (let stop = 0; stop < limit; stop += 1) {
    await tab.keyboard.press("Tab");
    const here = await tab.evaluate(focused);
    if (here.tag === "body") break;
    found.stops.push(here);
  }
  found.tip = null;
  if (await tab.evaluate(() => {
    const mark = [...document.querySelectorAll("svg [tabindex='0']")].find((one) => one.checkVisibility());
    mark?.focus();
    return mark !== undefined;
  })) {
    await tab.keyboard.press("ArrowRight");
    found.tip = await tab.evaluate(() => ({
      shown: document.getElementById("tip").hidden ? null : document.getElementById("tip").textContent,
      name: document.activeElement.getAttribute("aria-label"),
    }));
  }
  const folded = await tab.$$("details > summary");
  let opened = 0;
  for (const summary of folded) {
    await summary.focus();
    await tab.keyboard.press("Enter");
    opened += await summary.evaluate((element) => element.parentElement.open);
  }
  found.opened = [opened, folded.length];
  found.wider.push(...await tab.evaluate(wider));
  found.names = named(await tab.accessibility.snapshot({ interestingOnly: false }));
  found.sorted = await tab.evaluate(() => {
    const button = document.querySelector("table.sortable th.n button");
    if (!button) return null;
    button.click();
    const head = button.closest("th");
    const values = [...head.closest("table").tBodies[0].rows].map((row) => Number(row.cells[head.cellIndex].dataset.value));
    return values.every((value, row) => row === 0 || values[row - 1] >= value);
  });
  if (screenshots) await tab.screenshot({ path: join(screenshots, `${width}-${scheme}-open.png`), fullPage: true });
  // All is unfolded, as it is when it is printed. 186 mm between margins.
  await tab.setViewport({ width: 697, height: 900 });
  await tab.emulateMediaType("print");
  found.printed = await tab.evaluate(wider);
  await tab.close();
  return found;
}

const profile = await mkdtemp(join(tmpdir(), "page-"));
const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM_BIN,
  headless: true,
  pipe: true,
  userDataDir: profile,
  args: [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND",
  ],
});
try {
  const answer = {};
  for (const width of [390, 1200]) {
    for (const scheme of ["light", "dark"]) answer[`${width}-${scheme}`] = await look(browser, width, scheme);
  }
  process.stdout.write(JSON.stringify(answer));
} finally {
  await browser.close();
  await rm(profile, { recursive: true, force: true });
}
