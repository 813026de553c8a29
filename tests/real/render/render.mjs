// Draws dashboards in a headless Chromium:  node render.mjs MODULES BUNDLE JOBS.json
//   MODULES  a folder with node_modules, as scripts/install_render.py makes it
//   BUNDLE   what build.mjs made
//   JOBS     {prometheus, jobs: [{dashboard, png, report, from, to, scrape, theme, width, expandRows,
//            choose: {variable: value}}]}: files to read and to write, and how to draw
// Each report says of every panel what it asked, what came and what it showed, and names problems.
// Exit status 0 means that the reports were written; whether they are good is for the reader to say.
import fs from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import { createRequire } from 'node:module';

const [modules, bundle, jobsFile] = process.argv.slice(2).map((name) => path.resolve(name));
const require = createRequire(path.join(modules, 'package.json'));
const { chromium } = require('playwright-core');

const UID = 'prometheus';
const LOAD_MS = 90_000;
// Tables draw only the rows that can be seen: while it loads, the window shows everything.
const TALL = 6000;
const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];
const MIME = {
  '.js': 'text/javascript',
  '.css': 'text/css',
  '.svg': 'image/svg+xml',
  '.woff2': 'font/woff2',
};

const { prometheus, jobs } = JSON.parse(fs.readFileSync(jobsFile, 'utf8'));

// What the import form asks the user for is answered with our data source.
function read(file) {
  const content = JSON.parse(fs.readFileSync(file, 'utf8'));
  let dashboard = content.dashboard ?? content;
  for (const input of dashboard.__inputs ?? []) {
    const answer = input.type === 'datasource' ? UID : input.value;
    dashboard = JSON.parse(JSON.stringify(dashboard).replaceAll('${' + input.name + '}', answer));
  }
  // Grafana numbers panels that have no id when it loads a dashboard.
  const panels = (dashboard.panels ?? []).flatMap((panel) => [panel, ...(panel.panels ?? [])]);
  let last = Math.max(0, ...panels.map((panel) => panel.id ?? 0));
  const seen = new Set();
  for (const panel of panels) {
    if (!panel.id || seen.has(panel.id)) panel.id = ++last;
    seen.add(panel.id);
  }
  return dashboard;
}

function html(job) {
  const theme = job.theme ?? 'dark';
  const render = {
    dashboard: read(job.dashboard),
    from: job.from,
    to: job.to,
    scrapeInterval: job.scrape ?? '15s',
    dsUid: UID,
    expandRows: job.expandRows ?? false,
    choose: job.choose ?? {},
    tz: 'utc',
    problems: [],
    notes: [],
    unknownCalls: [],
  };
  const boot = {
    assets: { dark: '', light: '' },
    settings: {
      buildInfo: { version: '13.2.2', commit: 'none', env: 'production' },
      featureToggles: {},
      namespace: 'default',
      datasources: {},
      panels: {},
      appUrl: '/',
      appSubUrl: '',
      theme,
    },
    user: {
      theme,
      timezone: 'utc',
      locale: 'en-US',
      language: 'en-US',
      weekStart: '',
      orgRole: 'Viewer',
      isSignedIn: false,
    },
    navTree: [],
  };
  const plain = (value) => JSON.stringify(value).replace(/</g, '\\u003c');
  return `<!doctype html><html><head><meta charset="utf-8"><title>dashboard</title><script>
window.__RENDER__ = ${plain(render)};
window.grafanaBootData = ${plain(boot)};
window.__grafana_public_path__ = '/public/';
</script><link rel="stylesheet" href="/dist/main.css"></head>
<body class="theme-${theme}"><div id="root"></div><script src="/dist/main.js"></script></body></html>`;
}

function pass(request, response, url) {
  const target = new URL(prometheus);
  const options = {
    host: target.hostname,
    port: target.port,
    path: url.pathname.slice('/prom'.length) + url.search,
    method: request.method,
    headers: { ...request.headers, host: target.host },
  };
  const onward = http.request(options, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  onward.on('error', (error) => {
    const body = { status: 'error', errorType: 'proxy', error: error.message };
    response.writeHead(502, { 'content-type': 'application/json' }).end(JSON.stringify(body));
  });
  request.pipe(onward);
}

function fileOf(name) {
  if (name.startsWith('/dist/')) return path.join(bundle, name.slice('/dist'.length));
  const icons = '/public/build/img/';
  if (name.startsWith(icons)) {
    return path.join(modules, 'node_modules/@grafana/ui/dist/public/img', name.slice(icons.length));
  }
  if (name.startsWith('/public/fonts/inter/')) {
    const weight = /Medium/.test(name) ? 500 : 400;
    return path.join(modules, `node_modules/@fontsource/inter/files/inter-latin-${weight}-normal.woff2`);
  }
  return null;
}

const server = http
  .createServer((request, response) => {
    const url = new URL(request.url, 'http://x');
    const page = url.pathname.match(/^\/page\/(\d+)$/);
    if (page) return response.writeHead(200, { 'content-type': 'text/html' }).end(html(jobs[page[1]]));
    if (url.pathname.startsWith('/prom/')) return pass(request, response, url);
    const file = fileOf(url.pathname);
    if (!file || !fs.existsSync(file)) return response.writeHead(404).end('no such file');
    response.writeHead(200, { 'content-type': MIME[path.extname(file)] ?? 'application/octet-stream' });
    return fs.createReadStream(file).pipe(response);
  })
  .listen(0, '127.0.0.1');
await new Promise((ready) => server.on('listening', ready));

async function draw(browser, number) {
  const job = jobs[number];
  const page = await browser.newPage({ viewport: { width: job.width ?? 1600, height: TALL } });
  const said = new Set();
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type()))
      said.add(`${message.type()}: ${message.text().slice(0, 400)}`);
  });
  page.on('response', (answer) => {
    if (answer.status() >= 400) said.add(`${answer.status()} ${new URL(answer.url()).pathname}`);
  });
  page.on('pageerror', (error) => said.add(`pageerror: ${error.message}`));
  await page.goto(`http://127.0.0.1:${server.address().port}/page/${number}`, { timeout: LOAD_MS });
  let late;
  try {
    await page.waitForFunction('window.__RENDER__.done', null, { timeout: LOAD_MS });
  } catch (error) {
    late = error.message;
  }
  const found = await page.evaluate(() =>
    JSON.stringify({ report: window.__RENDER__.report, fatal: window.__RENDER__.fatal }),
  );
  const { report, fatal } = JSON.parse(found);
  if (job.png) {
    // No part of it may be laid out anew for the picture: cut out of the tall window.
    const height = Math.min(TALL, (await page.evaluate(() => window.__RENDER__.height)) ?? TALL);
    await page.waitForTimeout(300);
    const clip = { x: 0, y: 0, width: job.width ?? 1600, height: Math.ceil(height) };
    await page.screenshot({ path: job.png, clip });
  }
  await page.close();
  const whole = report ?? { panels: [], problems: [], notes: [], queries: [] };
  whole.fatal = fatal ?? late;
  whole.console = [...said];
  fs.writeFileSync(job.report, JSON.stringify(whole, null, 1));
}

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: FLAGS,
});
try {
  for (let number = 0; number < jobs.length; number++) await draw(browser, number);
} finally {
  await browser.close();
  server.close();
  server.closeAllConnections();
}
