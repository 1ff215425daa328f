// Before the first paint: the theme that was chosen, else the system's.
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const chosen = localStorage.getItem("theme") || "system";
    document.documentElement.dataset.theme = chosen === "system" ? (dark.matches ? "dark" : "light") : chosen;
    document.documentElement.dataset.chosen = chosen;
  };
  dark.addEventListener("change", apply);
  window.addEventListener("storage", apply);
  window.addEventListener("skylark-theme", apply);
  apply();
})();
