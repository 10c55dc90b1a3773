// A switch on the pages of the labs: large type without anything beside it, and the arrow keys go
// from one heading to the next. The address remembers it (page.html?projector).
document.addEventListener("DOMContentLoaded", () => {
  const article = document.querySelector("article");
  if (!article || !article.querySelector(".cell")) return;
  const button = document.createElement("button");
  button.className = "projector-switch";
  button.type = "button";
  const show = (on) => {
    document.body.classList.toggle("projector", on);
    button.textContent = on ? "Back to the page" : "For the projector";
    const address = new URL(location.href);
    on ? address.searchParams.set("projector", "") : address.searchParams.delete("projector");
    history.replaceState(null, "", address);
  };
  button.addEventListener("click", () => show(!document.body.classList.contains("projector")));
  article.prepend(button);
  if (new URL(location.href).searchParams.has("projector")) show(true);
  else button.textContent = "For the projector";
  document.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 }[event.key];
    if (!step || !document.body.classList.contains("projector")) return;
    const tops = [...article.querySelectorAll("h1, h2, h3")].map((h) => h.getBoundingClientRect().top + scrollY);
    const next = step > 0 ? tops.find((top) => top > scrollY + 10) : tops.reverse().find((top) => top < scrollY - 10);
    if (next !== undefined) { scrollTo(0, next); event.preventDefault(); }
  });
});
