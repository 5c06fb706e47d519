// An editor for text, in a shadow root: its styles are sheets there, which the policy of the page allows.

import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { javascript } from "@codemirror/lang-javascript";
import { markdown } from "@codemirror/lang-markdown";
import { python } from "@codemirror/lang-python";
import { HighlightStyle, bracketMatching, indentOnInput, syntaxHighlighting } from "@codemirror/language";
import { EditorState, type Extension } from "@codemirror/state";
import { EditorView, drawSelection, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";

const STYLE = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword, tags.modifier], color: "var(--accent)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--added-ink)" },
  { tag: [tags.comment, tags.meta], color: "var(--soft)", fontStyle: "italic" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--warn)" },
  { tag: [tags.heading, tags.strong], fontWeight: "600" },
  { tag: tags.invalid, color: "var(--bad)" },
]);
const THEME = EditorView.theme({
  "&": { height: "100%", color: "var(--ink)", backgroundColor: "var(--paper)", fontSize: "0.833rem" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-gutters": { backgroundColor: "var(--paper)", color: "var(--faint)", border: "0" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--raised)" },
  "&.cm-focused": { outline: "none" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--accent-soft)" },
});

function languageOf(path: string): Extension {
  if (/\.pyi?$/.test(path)) return python();
  if (/\.(?:[cm]?[jt]sx?|json)$/.test(path)) return javascript({ typescript: /\.[cm]?tsx?$/.test(path), jsx: /x$/.test(path) });
  if (/\.(?:md|markdown)$/.test(path)) return markdown();
  return [];
}

export interface Editor { text: () => string; close: () => void }

export function openEditor(host: HTMLElement, path: string, text: string, changed: () => void, save: () => void): Editor {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  root.replaceChildren();
  const parent = document.createElement("div");
  parent.style.height = "100%";
  root.append(parent);
  const view = new EditorView({
    root,
    parent,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(), history(), drawSelection(), highlightActiveLine(), indentOnInput(), bracketMatching(), syntaxHighlighting(STYLE), THEME,
        languageOf(path), EditorView.contentAttributes.of({ "aria-label": `Text of ${path}` }),
        keymap.of([{ key: "Mod-s", preventDefault: true, run: () => { save(); return true; } }, ...defaultKeymap, ...historyKeymap, indentWithTab]),
        EditorView.updateListener.of((update) => { if (update.docChanged) changed(); }),
      ],
    }),
  });
  return { text: () => view.state.doc.toString(), close: () => view.destroy() };
}
