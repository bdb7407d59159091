/** What a person chose for this browser: remembered, and never needed. */
export function remembered(name: string): string | null {
  try {
    return localStorage.getItem(`pyoco.${name}`);
  } catch {
    return null; // storage may be switched off
  }
}

export function remember(name: string, value: string): void {
  try {
    localStorage.setItem(`pyoco.${name}`, value);
  } catch {
    // then it is forgotten with the page
  }
}
