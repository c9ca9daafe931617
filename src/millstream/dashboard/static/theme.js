// The colour scheme: that of the system, or the one chosen here. Loaded before anything is drawn.

(() => {
  const NEXT = { system: "light", light: "dark", dark: "system" };
  const root = document.documentElement;
  const read = () => {
    try {
      return localStorage.getItem("millstream-theme") ?? "system";
    } catch {
      return "system";
    }
  };
  const apply = (theme) => {
    root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button !== null) {
      button.textContent = { system: "Auto", light: "Light", dark: "Dark" }[theme];
      button.setAttribute("aria-label", `Colour scheme: ${theme}. Change to ${NEXT[theme]}`);
    }
  };
  apply(read());
  addEventListener("DOMContentLoaded", () => {
    apply(root.dataset.theme);
    document.getElementById("theme").addEventListener("click", () => {
      const theme = NEXT[root.dataset.theme];
      apply(theme);
      try {
        localStorage.setItem("millstream-theme", theme);
      } catch {
        // The choice holds for this page only.
      }
    });
  });
})();
