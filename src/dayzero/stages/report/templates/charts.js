"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);

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
})();
