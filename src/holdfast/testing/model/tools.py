"""Chooses the tool of a request that does what a script wants. Agents name and shape their tools differently."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.api.model.models import Api
from holdfast.testing.model.steps import Bash, Call, Edit, Tool, Write

_SHELLS: Final = ("bash", "Bash", "exec_command", "shell_command", "shell", "local_shell", "container.exec")
_WRITERS: Final = ("write", "Write", "write_file", "create_file")
_EDITORS: Final = ("edit", "Edit", "edit_file", "str_replace")
_PATCHER: Final = "apply_patch"
_PATHS: Final = ("filePath", "file_path", "path")
_OLD: Final = ("oldString", "old_string", "oldText", "old_str")
_NEW: Final = ("newString", "new_string", "newText", "new_str")


class NoSuchTool(Exception):
    """The request offers no tool for what the script wants."""


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool that the request offers."""

    name: str
    properties: Mapping[str, Any]
    is_custom: bool = False
    """Whether it takes free text instead of an object."""
    namespace: str = ""
    """The group that it is offered in, as Codex does with the tools of an MCP server."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A call in the reply."""

    name: str
    arguments: Mapping[str, Any] | str
    is_custom: bool = False
    namespace: str = ""


def offered_by(api: Api, body: Mapping[str, Any]) -> dict[str, Offered]:
    """Returns the tools of a request by name. Those of a group are named `<group>__<name>`."""
    tools: dict[str, Offered] = {}
    for tool in body.get("tools") or ():
        if not isinstance(tool, Mapping):
            continue
        if tool.get("type") == "namespace":
            group = str(tool.get("name"))
            for inner in offered_by(api, tool).values():
                tools[f"{group}__{inner.name}"] = replace(inner, namespace=group)
            continue
        shape = tool.get("function") or {} if api is Api.OPENAI_CHAT else tool
        name = shape.get("name") or tool.get("type")
        schema = shape.get("input_schema" if api is Api.ANTHROPIC else "parameters") or {}
        if isinstance(name, str) and isinstance(schema, Mapping):
            tools[name] = Offered(name, schema.get("properties") or {}, tool.get("type") == "custom")
    return tools


def choose(call: Call, tools: Mapping[str, Offered]) -> Chosen:
    """Choose a tool for a call. Raises `NoSuchTool`."""
    match call:
        case Tool(name, arguments):
            known = tools.get(name) or Offered(name, {})
            return Chosen(known.name, arguments, known.is_custom, known.namespace)
        case Bash(command):
            return _shell(command, tools)
        case Write(path, content):
            return _write(path, content, tools)
        case Edit(path, old, new):
            return _edit(path, old, new, tools)


def _shell(command: str, tools: Mapping[str, Offered]) -> Chosen:
    tool = _first(_SHELLS, tools)
    if tool is None:
        raise NoSuchTool(f"the request does not offer a shell tool, only: {', '.join(tools)}")
    arguments: dict[str, Any]
    if "cmd" in tool.properties:
        arguments = {"cmd": command}
    elif (tool.properties.get("command") or {}).get("type") == "array":
        arguments = {"command": ["bash", "-lc", command]}
    else:
        arguments = {"command": command}
    if "description" in tool.properties:
        arguments["description"] = "Scripted command"
    return Chosen(tool.name, arguments)


def _write(path: str, content: str, tools: Mapping[str, Offered]) -> Chosen:
    tool = _first(_WRITERS, tools)
    if tool is not None:
        return Chosen(tool.name, {_key(_PATHS, tool): path, "content": content})
    if _PATCHER in tools:
        added = "".join(f"+{line}\n" for line in content.splitlines())
        return _patch(f"*** Add File: {path}\n{added}", tools[_PATCHER])
    encoded = base64.b64encode(content.encode()).decode()
    quoted = shlex.quote(path)
    return _shell(f'mkdir -p "$(dirname {quoted})" && printf %s {encoded} | base64 -d > {quoted}', tools)


def _edit(path: str, old: str, new: str, tools: Mapping[str, Offered]) -> Chosen:
    tool = _first(_EDITORS, tools)
    if tool is not None and "edits" in tool.properties:
        return Chosen(tool.name, {_key(_PATHS, tool): path, "edits": [{"oldText": old, "newText": new}]})
    if tool is not None:
        return Chosen(tool.name, {_key(_PATHS, tool): path, _key(_OLD, tool): old, _key(_NEW, tool): new})
    if _PATCHER in tools:
        lines = [*(f"-{line}" for line in old.splitlines()), *(f"+{line}" for line in new.splitlines())]
        return _patch(f"*** Update File: {path}\n@@\n" + "".join(f"{line}\n" for line in lines), tools[_PATCHER])
    program = (
        "import sys; f, a, b = sys.argv[1:]; t = open(f).read(); assert a in t; open(f, 'w').write(t.replace(a, b, 1))"
    )
    return _shell(shlex.join(["python3", "-c", program, path, old, new]), tools)


def _patch(hunk: str, tool: Offered) -> Chosen:
    text = f"*** Begin Patch\n{hunk}*** End Patch\n"
    return Chosen(tool.name, text if tool.is_custom else {_key(("input", "patch"), tool): text}, tool.is_custom)


def _first(names: Iterable[str], tools: Mapping[str, Offered]) -> Offered | None:
    return next((tools[name] for name in names if name in tools), None)


def _key(names: tuple[str, ...], tool: Offered) -> str:
    """Returns this tool's name for a property, or the last of the names if it does not declare one."""
    return next((name for name in names if name in tool.properties), names[-1])
