/**
 * Of a key that is put together when the page runs. The page has these instead of the keys: they are shorter. The build
 * chooses a seed with which no two keys have the same.
 */
export function fingerprint(key: string, seed: number): string {
  let hash = seed;
  for (const character of key) hash = Math.imul(hash ^ character.charCodeAt(0), 0x9e3779b1) ^ (hash >>> 15);
  return String.fromCharCode(...[26, 20, 14].map((shift) => 48 + ((hash >>> shift) & 63)));
}
