// Builds the page into the package, with names that contain a hash of what is in each file. The build is deterministic: no
// paths, no times. Fragments are made node by node ("tree"), because the page's policy refuses innerHTML.
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { type Plugin, defineConfig } from "vite";

/** Writes the digest of all sources beside what is built, so that a test can tell without node whether both belong together. */
function digestOfSources(): Plugin {
  return {
    name: "digest-of-sources",
    generateBundle() {
      const hash = createHash("sha256");
      const below = (folder: string): string[] => readdirSync(folder, { recursive: true, withFileTypes: true })
        .filter((each) => each.isFile()).map((each) => `${each.parentPath}/${each.name}`);
      const files = [...below("src"), ...below("public"), "index.html", "package-lock.json", "vite.config.ts"];
      for (const file of files.sort()) hash.update(`${file}\0`).update(readFileSync(file)).update("\0");
      this.emitFile({ type: "asset", fileName: "sources.sha256", source: `${hash.digest("hex")}\n` });
    },
  };
}

export default defineConfig({
  base: "/page/",
  publicDir: "public",
  plugins: [digestOfSources(), svelte({ configFile: false, compilerOptions: { fragments: "tree", runes: true } })],
  build: {
    outDir: "../src/holdfast/web",
    emptyOutDir: true,
    assetsDir: "",
    assetsInlineLimit: 0,
    target: "es2022",
    modulePreload: { polyfill: false },
    sourcemap: false,
    chunkSizeWarningLimit: 700,
    rolldownOptions: {
      output: {
        entryFileNames: "[name]-[hash].js",
        chunkFileNames: "[name]-[hash].js",
        assetFileNames: "[name]-[hash][extname]",
      },
    },
  },
});
