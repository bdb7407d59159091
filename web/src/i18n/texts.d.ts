/** Made of the files of the languages by vite.config.ts. */
declare module "virtual:texts/keys" {
  export const seed: number;
  const prints: string[];
  export default prints;
}

declare module "virtual:texts/*" {
  const found: string[];
  export default found;
}
