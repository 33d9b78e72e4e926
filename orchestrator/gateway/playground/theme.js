// Not a module, so that it runs before the first paint: no flash in the wrong theme.
(() => {
  const THEMES = ["system", "light", "dark"];
  const PLACE = "draftloop-theme";

  function stored() {
    try {
      const name = localStorage.getItem(PLACE);
      return THEMES.includes(name) ? name : "system";
    } catch {
      return "system"; // storage may be forbidden
    }
  }

  function store(name) {
    try {
      localStorage.setItem(PLACE, name);
    } catch {
      // Without storage, the theme lasts for this visit only.
    }
  }

  let theme = stored();
  document.documentElement.dataset.theme = theme;

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const show = () => {
      document.documentElement.dataset.theme = theme;
      button.textContent = `Theme: ${theme}`;
    };
    button.addEventListener("click", () => {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      store(theme);
      show();
    });
    show();
  });
})();
