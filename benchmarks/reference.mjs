// Serves the reference implementation of Durable Streams, file-backed: node reference.mjs PORT FOLDER
import { DurableStreamTestServer } from "@durable-streams/server";

const [port, dataDir] = process.argv.slice(2);
const server = new DurableStreamTestServer({ host: "127.0.0.1", port: Number(port), dataDir, webhooks: false });
await server.start();
