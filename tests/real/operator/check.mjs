// Validates manifests of Prometheus's operator, a JSON list on stdin, by its own types; prints what is
// wrong with them, as JSON, by their names. The argument is the folder the packages are in.
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const TYPES = "node_modules/@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";
const kinds = {};
for (const kind of ["ServiceMonitor", "PodMonitor", "PrometheusRule"]) {
  const file = join(process.argv[2], TYPES, `${kind}.js`);
  kinds[kind] = (await import(pathToFileURL(file).href))[kind];
}
let text = "";
for await (const piece of process.stdin) text += piece;
const wrong = {};
for (const manifest of JSON.parse(text)) {
  try {
    new kinds[manifest.kind](manifest).validate();
  } catch (error) {
    wrong[`${manifest.kind} ${manifest.metadata.name}`] = String(error.message);
  }
}
console.log(JSON.stringify(wrong));
