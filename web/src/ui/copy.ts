// Ways out of the page: the clipboard, which a browser gives to pages of this machine and of https only, and files.

import { notices } from "../state/notices.svelte.ts";

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    notices.say("The browser gave no access to the clipboard.", { bad: true, hint: "Select the text, and copy it by hand." });
    return false;
  }
}

export function saveAs(content: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  link.download = name.replace(/[^\w.-]+/g, "_").slice(0, 100);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
