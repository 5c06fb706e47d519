"""A small language server for tests: it knows the functions of the file that was opened last."""

from __future__ import annotations

SYMBOLS_OF_PYTHON = """#!/usr/bin/python3
import json, sys

def symbol(name, line):
    place = {"line": line, "character": 0}
    return {"name": name, "kind": 12, "range": {"start": place, "end": place}, "children": []}

text = ""
while True:
    size = 0
    while (line := sys.stdin.buffer.readline().strip()):
        size = int(line.split(b":")[1])
    if not size:
        break
    message = json.loads(sys.stdin.buffer.read(size))
    method, result = message["method"], None
    if method == "textDocument/didOpen":
        text = message["params"]["textDocument"]["text"]
    elif method == "initialize":
        result = {"capabilities": {}}
    elif method == "textDocument/documentSymbol":
        lines = enumerate(text.splitlines())
        result = [symbol(line[4:].split("(")[0], n) for n, line in lines if line.startswith("def ")]
    elif method == "workspace/symbol":
        result = []
    elif method == "textDocument/completion":
        result = [{"label": "print"}]
    if "id" in message:
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        sys.stdout.buffer.write(b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
        sys.stdout.buffer.flush()
"""
