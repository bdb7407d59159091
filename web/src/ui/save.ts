/** Hands a file to the person at the page. */
export function save(name: string, content: string | Blob): void {
  const address = URL.createObjectURL(typeof content === "string" ? new Blob([content]) : content);
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
