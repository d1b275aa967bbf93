// Replays captures with wabac, the engine of replayweb.page, in a headless Chromium.
//
//   node driver.mjs FOLDER < asked.json > answers.json
//
// asked.json: {"source": "x.wacz" or "x.json", a path in FOLDER,
//              "asked": [{"time": digits, "url": URL, "container": hash of one WACZ, or absent}, ...]}
// answers.json: {"collection": what the engine says of the source,
//                "answers": [{"status", "exchange": the header X-Exchange, "size", "sha256"}, ...]}
//
// WABAC_DIR names the folder with node_modules, CHROMIUM_BIN the browser. The files are served with byte ranges
// from a server of this process on 127.0.0.1; the browser gets no other address.

import { createReadStream, readFileSync } from "node:fs";
import { mkdtemp, rm, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve, sep } from "node:path";
import { fileURLToPath } from "node:url";

const modules = createRequire(join(resolve(process.env.WABAC_DIR), "package.json"));
const puppeteer = modules("puppeteer-core");

const folder = resolve(process.argv[2]);
const page = fileURLToPath(new URL("page.html", import.meta.url));
const worker = join(resolve(process.env.WABAC_DIR), "node_modules/@webrecorder/wabac/dist/sw.js");

function fileOf(path) {
  if (path === "/") return [page, "text/html"];
  if (path === "/sw.js") return [worker, "text/javascript"];
  const file = resolve(folder, "." + decodeURIComponent(path.replace(/^\/files/, "")));
  return path.startsWith("/files/") && file.startsWith(folder + sep) ? [file, "application/octet-stream"] : [];
}

async function serve(request, response) {
  const [file, type] = fileOf(new URL(request.url, "http://localhost").pathname);
  const size = file && (await stat(file).then((found) => found.size, () => undefined));
  if (size === undefined) {
    response.writeHead(404).end();
    return;
  }
  const headers = { "Content-Type": type, "Accept-Ranges": "bytes", "Cache-Control": "no-store" };
  const range = /^bytes=(\d*)-(\d*)$/.exec(request.headers.range ?? "");
  let [start, end] = [0, size - 1];
  if (range && range[1]) {
    start = Number(range[1]);
    end = range[2] ? Math.min(Number(range[2]), end) : end;
  } else if (range && range[2]) {
    start = Math.max(0, size - Number(range[2]));
  }
  if (range && start > end) {
    response.writeHead(416, { "Content-Range": `bytes */${size}` }).end();
    return;
  }
  if (range) headers["Content-Range"] = `bytes ${start}-${end}/${size}`;
  response.writeHead(range ? 206 : 200, { ...headers, "Content-Length": end - start + 1 });
  if (request.method === "HEAD") response.end();
  else createReadStream(file, { start, end }).pipe(response);
}

async function main() {
  const { source, asked } = JSON.parse(readFileSync(0, "utf8"));
  const server = createServer((request, response) =>
    serve(request, response).catch((error) => response.destroy(error)));
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const profile = await mkdtemp(join(tmpdir(), "wabac-"));
  const browser = await puppeteer.launch({
    executablePath: process.env.CHROMIUM_BIN,
    headless: true,
    pipe: true,
    userDataDir: profile,
    args: [
      "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
      "--disable-background-networking", "--disable-component-update", "--disable-sync",
      "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ],
  });
  try {
    const tab = await browser.newPage();
    await tab.goto(`http://127.0.0.1:${server.address().port}/`);
    const collection = await tab.evaluate((path) => load("lake", path), `files/${encodeURI(source)}`);
    const answers = [];
    for (const one of asked) answers.push(await tab.evaluate((capture) => replayed("lake", capture), one));
    process.stdout.write(JSON.stringify({ collection, answers }));
  } finally {
    await browser.close();
    server.closeAllConnections();
    server.close();
    await rm(profile, { recursive: true, force: true });
  }
}

await main();
