// What was typed and not sent yet, for as long as the tab lives: a look at another page loses no word of it.

const PREFIX = "draft:";

export function draftOf(place: string): string {
  try {
    return sessionStorage.getItem(PREFIX + place) ?? "";
  } catch {
    return "";
  }
}

export function keepDraft(place: string, text: string): void {
  try {
    if (text) sessionStorage.setItem(PREFIX + place, text);
    else sessionStorage.removeItem(PREFIX + place);
  } catch { /* then it is lost with the page */ }
}
