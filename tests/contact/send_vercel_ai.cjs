// Make the calls of `senders.py` by the Vercel AI SDK: `node send_vercel_ai.cjs ROOT`, with NODE_PATH
// naming where npm installed its packages, and the variables of OpenTelemetry's exporter.
const { createOpenAI } = require("@ai-sdk/openai");
const { trace } = require("@opentelemetry/api");
const { OTLPTraceExporter } = require("@opentelemetry/exporter-trace-otlp-proto");
const { NodeSDK } = require("@opentelemetry/sdk-node");
const { APICallError, generateText, streamText } = require("ai");

async function both(root) {
  const openai = createOpenAI({ baseURL: `${root}/v1`, apiKey: "none" });
  const given = {
    model: openai.chat("sim"),
    prompt: "hi",
    maxOutputTokens: 16,
    maxRetries: 0,
    experimental_telemetry: { isEnabled: true, functionId: "ask" },
  };
  await trace.getTracer("app").startActiveSpan("POST /ask", async (span) => {
    for await (const _ of streamText(given).textStream);
    await generateText({ ...given, headers: { "x-llmtrace-sim": "reject_first=9" } }).catch(
      (error) => {
        if (!APICallError.isInstance(error)) throw error;
      },
    );
    span.end();
  });
}

const sdk = new NodeSDK({ traceExporter: new OTLPTraceExporter() });
sdk.start();
both(process.argv[2]).finally(() => sdk.shutdown());
