// The tools by which pi asks Holdfast for something. pi has no MCP, so this extension calls Holdfast itself.
// The file named by HOLDFAST_TOOLS has the URL of the guest API, the token of the run, and the tools.
import { readFileSync } from "node:fs";
import { randomBytes } from "node:crypto";

const PATIENCE_MS = 120_000;
const CALL_MS = 75_000;
const AGAIN = new Set([0, 408, 429, 502, 503, 504]);

async function post(url, token, body, signal) {
	try {
		const response = await fetch(url, {
			method: "POST",
			headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
			body,
			signal: AbortSignal.any([AbortSignal.timeout(CALL_MS), ...(signal ? [signal] : [])]),
		});
		return [response.status, await response.text()];
	} catch (error) {
		if (signal?.aborted) throw error;
		return [0, String(error?.cause?.message ?? error?.message ?? error)];
	}
}

function messageIn(answer) {
	try {
		const { message, hint } = JSON.parse(answer).error;
		return hint ? `${message} (${hint})` : message;
	} catch {
		return answer.slice(0, 500);
	}
}

async function call(config, tool, given, signal) {
	// With a key, a call that is repeated because its answer was lost has no second effect.
	const key = "key" in tool.inputSchema.properties && !given?.key ? { key: `call-${randomBytes(12).toString("hex")}` } : {};
	const body = JSON.stringify({ ...given, ...key });
	const end = Date.now() + PATIENCE_MS;
	for (let pause = 200; ; pause = Math.min(pause * 2, 5000)) {
		const [status, answer] = await post(`${config.url}/v1/tools/${tool.name}`, config.token, body, signal);
		if (status === 200) return answer;
		if (!AGAIN.has(status)) throw new Error(messageIn(answer));
		if (Date.now() + pause > end) throw new Error(`Holdfast does not answer: ${messageIn(answer)}`);
		await new Promise((resolve) => setTimeout(resolve, pause));
	}
}

export default function (pi) {
	const config = JSON.parse(readFileSync(process.env.HOLDFAST_TOOLS, "utf8"));
	for (const tool of config.tools) {
		pi.registerTool({
			name: tool.name,
			label: tool.name,
			description: tool.description,
			parameters: tool.inputSchema,
			async execute(_id, given, signal) {
				return { content: [{ type: "text", text: await call(config, tool, given, signal) }], details: {} };
			},
		});
	}
}
