"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const read = (id) => JSON.parse(byId(id).textContent);

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
      const rows = data[byId("operator-level").value];
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
    for (const id of ["operator-filter", "operator-phase", "operator-level"]) byId(id).addEventListener("input", show);
    byId("operator-more").addEventListener("click", () => { state.all = true; show(); });
    byId("operator-save").addEventListener("click", () => {
      const names = ["op", "kind", "module", "calls", "shapes", "dtype", "flops", "bytes", "seconds", "phase"];
      const rows = chosen().map((row) => Object.fromEntries(names.map((name, column) => [name, row[column]])));
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([JSON.stringify(rows, null, 1)], { type: "application/json" }));
      link.download = "operators.json";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
    show();
  }

  if (byId("operator-data")) operatorTable();

  // The tree of modules. A node is [name, class, number, [[value, text], ...], children].
  const OPEN_LEVELS = 2;

  function moduleTree() {
    const data = read("tree-data");
    const body = document.querySelector("#tree-table tbody");
    const heads = [...document.querySelectorAll("#tree-table th")];
    const open = new Set();
    const state = { column: -1, descending: false };
    const whole = data.root[3].map(([value]) => value);

    function eachNode(node, level, visit) {
      visit(node, level);
      for (const child of node[4]) eachNode(child, level + 1, visit);
    }

    function openTo(levels) {
      open.clear();
      eachNode(data.root, 0, (node, level) => { if (level < levels) open.add(node); });
    }

    function ordered(children) {
      if (state.column < 0) return children;
      const sign = state.descending ? -1 : 1;
      return [...children].sort((a, b) => sign * (a[3][state.column][0] - b[3][state.column][0]));
    }

    // Nodes that match all words, and those above and below them.
    function wanted(words) {
      const keep = new Set();
      const visit = (node, path, inside) => {
        const own = `${path} ${node[1]}`.toLowerCase();
        const hit = inside || words.every((word) => own.includes(word));
        const below = node[4].map((child) => visit(child, `${path}.${child[0]}`, hit)).some(Boolean);
        if (hit || below) keep.add(node);
        return hit || below;
      };
      visit(data.root, data.root[0], false);
      return keep;
    }

    function line(node, level, forced, times) {
      const row = document.createElement("tr");
      const head = document.createElement("th");
      head.scope = "row";
      head.style.paddingLeft = `${level * 16}px`;
      const label = document.createElement(node[4].length ? "button" : "span");
      label.textContent = node[2] > 1 ? `${node[2]} × ${node[0]}` : node[0];
      if (node[4].length) {
        label.type = "button";
        label.className = "branch";
        label.setAttribute("aria-expanded", String(forced || open.has(node)));
        label.addEventListener("click", () => {
          if (open.has(node)) open.delete(node); else open.add(node);
          show();
        });
      } else label.className = "leaf";
      const kind = document.createElement("small");
      kind.textContent = node[1];
      head.append(label, kind);
      row.append(head);
      node[3].forEach(([value, text], column) => {
        const cell = document.createElement("td");
        cell.className = "number bar";
        cell.style.setProperty("--share", `${whole[column] ? (100 * value * times) / whole[column] : 0}%`);
        cell.textContent = text;
        row.append(cell);
      });
      return row;
    }

    function show() {
      const words = byId("tree-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
      const keep = words.length ? wanted(words) : null;
      const fragment = document.createDocumentFragment();
      let count = 0;
      const add = (node, level, times) => {
        if (keep && !keep.has(node)) return;
        count += 1;
        fragment.append(line(node, level, keep !== null, times * node[2]));
        if (keep || open.has(node)) for (const child of ordered(node[4])) add(child, level + 1, times * node[2]);
      };
      add(data.root, 0, 1);
      body.replaceChildren(fragment);
      byId("tree-count").textContent = `${count} rows`;
      heads.forEach((head) => {
        const own = Number(head.querySelector("button").dataset.column) === state.column;
        head.setAttribute("aria-sort", !own ? "none" : state.descending ? "descending" : "ascending");
      });
    }

    for (const head of heads) {
      head.querySelector("button").addEventListener("click", (event) => {
        const column = Number(event.currentTarget.dataset.column);
        state.descending = column >= 0 && (column !== state.column || !state.descending);
        state.column = column;
        show();
      });
    }
    byId("tree-filter").addEventListener("input", show);
    byId("tree-open").addEventListener("click", () => { openTo(Infinity); show(); });
    byId("tree-close").addEventListener("click", () => { openTo(1); show(); });
    openTo(OPEN_LEVELS);
    show();
  }

  if (byId("tree-data")) moduleTree();

  for (const form of document.querySelectorAll("form.controls")) {
    form.addEventListener("submit", (event) => event.preventDefault());
  }

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
