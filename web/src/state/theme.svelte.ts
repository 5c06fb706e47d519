// Dark or light: as the system has it, or as the user chose.

export type Theme = "system" | "light" | "dark";
const NAME = "theme";

function chosen(): Theme {
  try {
    const told = localStorage.getItem(NAME);
    return told === "light" || told === "dark" ? told : "system";
  } catch {
    return "system";
  }
}

class Appearance {
  theme = $state<Theme>(chosen());

  next(): void {
    this.theme = this.theme === "system" ? "dark" : this.theme === "dark" ? "light" : "system";
    try {
      localStorage.setItem(NAME, this.theme);
    } catch { /* then it is for this tab */ }
    applyTheme();
  }
}

export const appearance = new Appearance();

export function applyTheme(): void {
  const root = document.documentElement;
  if (appearance.theme === "system") root.removeAttribute("data-theme");
  else root.dataset.theme = appearance.theme;
}
