import { remember, remembered } from "./preferences";
import { effect, signal } from "./signals";

export const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

function initial(): Theme {
  const known = remembered("theme");
  return THEMES.find((theme) => theme === known) ?? "auto";
}

export const theme = signal<Theme>(initial());

export function chooseTheme(chosen: Theme): void {
  theme.value = chosen;
  remember("theme", chosen);
}

effect(() => {
  if (typeof document !== "undefined") document.documentElement.dataset.theme = theme.value;
});
