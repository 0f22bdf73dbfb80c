// Several files in one body: a tar archive, which the service unpacks.

const BLOCK = 512;
const encode = (text) => new TextEncoder().encode(text);

function cut(name, most) {
  let bytes = encode(name);
  // The end tells more than the beginning, and half a letter is none.
  while (bytes.length > most) {
    name = [...name].slice(1).join("");
    bytes = encode(name);
  }
  return bytes;
}

function header(name, size) {
  const block = new Uint8Array(BLOCK);
  const put = (at, bytes) => block.set(bytes, at);
  const octal = (at, length, value) => put(at, encode(`${value.toString(8).padStart(length - 1, "0")}\0`));
  put(0, cut(name, 100));
  octal(100, 8, 0o644);
  octal(108, 8, 0);
  octal(116, 8, 0);
  octal(124, 12, size);
  octal(136, 12, 0);
  put(148, encode("        "));
  put(156, encode("0"));
  put(257, encode("ustar\0" + "00"));
  octal(148, 7, block.reduce((sum, byte) => sum + byte, 0));
  return block;
}

// Returns the files one behind the other, without reading them.
export function archive(files) {
  const parts = files.flatMap((file) => [header(file.name, file.size), file, new Uint8Array((BLOCK - (file.size % BLOCK)) % BLOCK)]);
  return new Blob([...parts, new Uint8Array(2 * BLOCK)]);
}
