// The clipboard, which a browser gives to pages of this machine and of https only.

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
