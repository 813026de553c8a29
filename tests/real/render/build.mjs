// Bundles src/ with Grafana's packages for the browser:  node build.mjs MODULES OUT
//   MODULES  a folder with node_modules, as scripts/install_render.py makes it
//   OUT      where main.js and main.css go
import fs from 'node:fs';
import path from 'node:path';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

const here = path.dirname(fileURLToPath(import.meta.url));
const [modules, out] = process.argv.slice(2).map((name) => path.resolve(name));
const require = createRequire(path.join(modules, 'package.json'));
const esbuild = require('esbuild');

// Left out: editors and maps, which no dashboard shows. Anything asked of them is an empty function.
const EMPTY =
  'module.exports = new Proxy(function () {}, { get: (t, k) =>' +
  ' k === "__esModule" ? false : k === Symbol.toPrimitive ? () => "" : t[k] ?? (() => {}) });';
const leaveOut = (names) => ({
  name: 'leave-out',
  setup(build) {
    const filter = new RegExp(`^(${names.join('|')})(/|$)`);
    build.onResolve({ filter }, (asked) => ({ path: asked.path, namespace: 'left-out' }));
    build.onLoad({ filter: /.*/, namespace: 'left-out' }, () => ({ contents: EMPTY, loader: 'js' }));
  },
});

// @grafana/ui uses react-router 5 beside @grafana/scenes' 6: its compat package belongs to the former.
const routers = {
  name: 'routers',
  setup(build) {
    build.onResolve({ filter: /^react-router-dom$/ }, (asked) => {
      if (!/react-router-dom-v5-compat/.test(asked.importer) || asked.pluginData === 'ours') return undefined;
      const resolveDir = path.join(modules, 'node_modules/@grafana/ui');
      return build.resolve(asked.path, { resolveDir, kind: asked.kind, pluginData: 'ours' });
    });
  },
};

const asText = Object.fromEntries(
  ['.svg', '.woff', '.woff2', '.ttf', '.png', '.gif'].map((ending) => [ending, 'dataurl']),
);
await esbuild.build({
  entryPoints: [path.join(here, 'src/main.jsx')],
  nodePaths: [path.join(modules, 'node_modules')],
  bundle: true,
  outdir: out,
  format: 'iife',
  platform: 'browser',
  target: 'chrome120',
  mainFields: ['module', 'browser', 'main'],
  conditions: ['import', 'module', 'browser'],
  jsx: 'automatic',
  define: {
    'process.env.NODE_ENV': '"production"',
    'process.env': '{}',
    'process.platform': '"browser"',
    global: 'window',
  },
  loader: { ...asText, '.json': 'json' },
  plugins: [routers, leaveOut(['monaco-editor', 'ol', '@grafana/assistant'])],
  logLevel: 'warning',
  logLimit: 20,
});
if (!fs.existsSync(path.join(out, 'main.js'))) throw new Error('esbuild wrote no main.js');
