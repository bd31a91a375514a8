// The pointer over a chart of time shows that moment in all of them. Without this script the page lacks only that.
(() => {
  const values = JSON.parse(document.getElementById("values").textContent);
  const plots = [...document.querySelectorAll(".timed .plot")];
  if (!values.at || !plots.length) return;
  const outputs = [...document.querySelectorAll(".timed output")];
  const cursors = plots.map((plot) => plot.querySelector(".cursor"));
  const shown = (value) =>
    value === null || value === undefined ? "–"
      : Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
  const show = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const at = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    let index = values.at.findIndex((share) => share >= at);
    if (index < 0) index = values.at.length - 1;
    for (const cursor of cursors) {
      cursor.style.display = "block";
      cursor.style.left = `${100 * values.at[index]}%`;
    }
    for (const output of outputs) output.textContent = shown(values[output.dataset.key][index]);
  };
  const hide = () => {
    for (const cursor of cursors) cursor.style.display = "none";
    for (const output of outputs) output.textContent = "";
  };
  for (const plot of plots) {
    plot.addEventListener("pointermove", show);
    plot.addEventListener("pointerleave", hide);
  }
})();
