"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const read = (id) => JSON.parse(byId(id).textContent);

  // Charts: the figures come with their data; text and grid take the colours of the page.
  const charts = [...document.querySelectorAll(".plot")];
  const figures = new Map(charts.map((plot) => [plot, read(`${plot.id}-data`)]));

  function themed(layout, plot, traces) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const result = {
      ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--ink"), size: 12, family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
    };
    // On a narrow page the legend takes a line for each entry.
    if (plot.clientWidth < 480 && traces > 3) result.height = layout.height + 16 * traces;
    for (const key of Object.keys(layout).filter((name) => /^[xy]axis/.test(name))) {
      result[key] = { automargin: true, ...layout[key], gridcolor: colour("--line"), linecolor: colour("--line"),
                      zerolinecolor: colour("--line") };
      if (result[key].title) result[key].title = { ...result[key].title, font: { color: colour("--muted"), size: 12 } };
    }
    return result;
  }

  function draw() {
    for (const plot of charts) {
      const figure = figures.get(plot);
      Plotly.react(plot, figure.data, themed(figure.layout, plot, figure.data.length), { responsive: true, displayModeBar: false });
    }
  }

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", draw);
  addEventListener("afterprint", draw);

  // The operator table. A row holds the columns in order and then the texts of the three numeric ones.
  const FIRST_ROWS = 100;
  const TEXT_OF = new Map([[6, 10], [7, 11], [8, 12]]);
  const NUMERIC = new Set([3, 6, 7, 8]);
  const COLUMNS = 10;

  function operatorTable() {
    const data = read("operator-data");
    const body = document.querySelector("#operator-table tbody");
    const heads = [...document.querySelectorAll("#operator-table th")];
    const state = { column: 8, descending: true, all: false };

    function chosen() {
      const words = byId("operator-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
      const phase = byId("operator-phase").value;
      const rows = byId("operator-grouped").checked ? data.grouped : data.single;
      const found = rows.filter((row) => {
        if (phase && row[9] !== phase) return false;
        const text = `${row[0]} ${row[1]} ${row[2]} ${row[4]} ${row[5]}`.toLowerCase();
        return words.every((word) => text.includes(word));
      });
      const sign = state.descending ? -1 : 1;
      const compare = NUMERIC.has(state.column)
        ? (a, b) => (a[state.column] ?? -1) - (b[state.column] ?? -1)
        : (a, b) => (a[state.column] < b[state.column] ? -1 : a[state.column] > b[state.column] ? 1 : 0);
      return found.sort((a, b) => sign * compare(a, b));
    }

    function show() {
      const rows = chosen();
      const visible = state.all ? rows : rows.slice(0, FIRST_ROWS);
      const fragment = document.createDocumentFragment();
      for (const row of visible) {
        const line = document.createElement("tr");
        for (let column = 0; column < COLUMNS; column += 1) {
          const cell = document.createElement("td");
          if (NUMERIC.has(column)) cell.className = "number";
          cell.textContent = row[TEXT_OF.get(column) ?? column];
          line.append(cell);
        }
        fragment.append(line);
      }
      body.replaceChildren(fragment);
      byId("operator-count").textContent = `${visible.length} of ${rows.length} rows`;
      byId("operator-more").hidden = visible.length === rows.length;
      heads.forEach((head, index) => head.setAttribute(
        "aria-sort", index !== state.column ? "none" : state.descending ? "descending" : "ascending"));
    }

    for (const head of heads) {
      head.querySelector("button").addEventListener("click", (event) => {
        const column = Number(event.currentTarget.dataset.column);
        state.descending = column === state.column ? !state.descending : NUMERIC.has(column);
        state.column = column;
        show();
      });
    }
    for (const id of ["operator-filter", "operator-phase", "operator-grouped"]) byId(id).addEventListener("input", show);
    byId("operator-more").addEventListener("click", () => { state.all = true; show(); });
    document.querySelector("form.controls").addEventListener("submit", (event) => event.preventDefault());
    show();
  }

  if (byId("operator-data")) operatorTable();

  // Copy buttons; the old way where a page from a file may not use the clipboard.
  async function copy(text, source) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      getSelection().selectAllChildren(source);
      document.execCommand("copy");
      getSelection().removeAllRanges();
    }
  }

  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const source = byId(button.dataset.copy);
      await copy(source.textContent, source);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
})();
