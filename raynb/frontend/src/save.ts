/** Hands bytes to the browser as a file to save. */

export function saveFile(name: string, data: Uint8Array<ArrayBuffer>): void {
  // Octets, not text: a browser that shows text would open a log as a page.
  const address = URL.createObjectURL(new Blob([data], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  // Never in the page: a click is enough.
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
