/**
 * A sortable table of any number of rows, of which those in view are drawn.
 *
 * Columns say how to read, sort and draw a value. A column that is unknown in
 * every row is left out; unknown values sort last in both directions.
 */
import { h, setAttr, setText, setTitle, show } from "./dom";
import { VirtualList } from "./virtual";

export const ROW_HEIGHT = 27;
const NOTE_HEIGHT = 20;

export interface Cell<T> {
  readonly node: HTMLTableCellElement;
  set(item: T): void;
}

export interface Column<T> {
  key: string;
  label: string;
  /** What the column means, for whoever points at its head. */
  title: string;
  /** Pixels; where there is room all columns grow alike. */
  width: number;
  numeric?: boolean;
  /** Shown even where no row knows its value. */
  always?: boolean;
  value(item: T): number | string | null;
  /** Numbers start with the largest unless this says otherwise. */
  first?: Direction;
  cell(): Cell<T>;
  /** The column in a word over all rows that are shown. */
  summary?(items: readonly T[]): { text: string; title: string } | null;
}

export type Direction = "ascending" | "descending";

export interface TableOptions<T> {
  label: string;
  columns: readonly Column<T>[];
  key(item: T): number | string;
  sort: { key: string; direction: Direction };
  /** A line under the row where it has more to say, else null. */
  note?(item: T): string | null;
  onRow?(item: T): void;
  /** The pointer is on a row, or on none. */
  onPoint?(item: T | null): void;
  /** Classes of a row besides the table's own. */
  rowClass?(item: T): string;
  /** How many rows make a summary worth its place. */
  summaryFrom?: number;
}

interface Parts {
  col: HTMLElement;
  head: HTMLTableCellElement;
  sum: HTMLTableCellElement;
}

export class Table<T> {
  readonly node: HTMLElement;
  private readonly table = h("table", { class: "rn-table" });
  private readonly summaryRow = h("tr", { class: "rn-summary" });
  private readonly partsOf = new Map<string, Parts>();
  private readonly columns: readonly Column<T>[];
  private readonly hidden = new Set<string>();
  private readonly list: VirtualList<T, TableRow<T>>;
  private all: readonly T[] = [];
  private items: readonly T[] = [];
  /** The row that was looked for last. */
  private found: number | string | null = null;
  private sort: { key: string; direction: Direction };

  constructor(private readonly options: TableOptions<T>) {
    const { columns, label } = options;
    this.columns = columns;
    this.sort = options.sort;
    const headRow = h("tr");
    const group = h("colgroup");
    for (const column of columns) {
      const parts = {
        col: h("col"),
        head: this.makeHead(column),
        sum: h("td", { class: classOf(column) }),
      };
      parts.col.style.width = `${column.width}px`;
      this.partsOf.set(column.key, parts);
      group.append(parts.col);
      headRow.append(parts.head);
      this.summaryRow.append(parts.sum);
    }
    this.fitWidth();
    this.table.append(group, h("thead", {}, headRow, this.summaryRow));
    this.node = h(
      "div",
      {
        class: "rn-table-scroll",
        attrs: {
          tabindex: "0",
          role: "region",
          "aria-label": label,
          "data-lm-suppress-shortcuts": "true",
        },
      },
      this.table,
    );
    // A row is a <tbody>, so that a note can be a second <tr> of it.
    this.list = new VirtualList<T, TableRow<T>>({
      scroller: this.node,
      body: this.table,
      spacer: () => {
        const sized = h("td");
        const node = h("tbody", { class: "rn-spacer", attrs: { "aria-hidden": "true" } }, h("tr", {}, sized));
        return { node, sized };
      },
      make: () => this.makeRow(),
      key: options.key,
      height: (item) => ROW_HEIGHT + (options.note?.(item) == null ? 0 : NOTE_HEIGHT),
    });
    this.markSort();
  }

  /** Shows these rows; `all` are those that decide which columns are known. */
  set(items: readonly T[], all: readonly T[] = items): void {
    this.all = all;
    for (const column of this.columns) this.showColumn(column);
    this.items = this.sorted(items);
    this.summarise();
    setAttr(this.table, "aria-rowcount", String(items.length));
    this.list.set(this.items);
  }

  /** Brings a row into view and marks it. */
  reveal(key: number | string): void {
    const index = this.items.findIndex((item) => this.options.key(item) === key);
    if (index < 0) return;
    this.found = key;
    this.list.reveal(index);
    this.list.draw(true);
  }

  /** Draws the rows in view again: their look changed, not their order. */
  refresh(): void {
    this.list.draw(true);
  }

  destroy(): void {
    this.list.destroy();
  }

  private makeHead(column: Column<T>): HTMLTableCellElement {
    const button = h("button", { text: column.label, title: column.title, attrs: { type: "button" } });
    button.addEventListener("click", () => this.sortBy(column));
    return h("th", { class: classOf(column), attrs: { scope: "col" } }, button);
  }

  private sortBy(column: Column<T>): void {
    if (this.sort.key !== column.key) {
      const direction = column.first ?? (column.numeric === true ? "descending" : "ascending");
      this.sort = { key: column.key, direction };
    } else {
      const direction = this.sort.direction === "ascending" ? "descending" : "ascending";
      this.sort = { key: column.key, direction };
    }
    this.markSort();
    this.node.scrollTop = 0;
    this.set(this.items, this.all);
  }

  private markSort(): void {
    for (const column of this.columns) {
      const own = column.key === this.sort.key;
      setAttr(this.parts(column).head, "aria-sort", own ? this.sort.direction : "none");
    }
  }

  private sorted(items: readonly T[]): readonly T[] {
    const column = this.columns.find(({ key }) => key === this.sort.key);
    if (column === undefined) return items;
    const sign = this.sort.direction === "ascending" ? 1 : -1;
    const keyed = items.map((item) => ({ item, value: column.value(item), tie: this.options.key(item) }));
    keyed.sort((a, b) => compare(a.value, b.value, sign) || compare(a.tie, b.tie, 1));
    return keyed.map(({ item }) => item);
  }

  private showColumn(column: Column<T>): void {
    const visible =
      column.always === true || this.all.some((item) => column.value(item) !== null);
    if (visible !== this.hidden.has(column.key)) return;
    if (visible) this.hidden.delete(column.key);
    else this.hidden.add(column.key);
    const { col, head, sum } = this.parts(column);
    for (const node of [col, head, sum]) show(node, visible);
    this.list.each((row) => row.showColumns(this.hidden));
    this.fitWidth();
  }

  private fitWidth(): void {
    const shown = this.columns.filter(({ key }) => !this.hidden.has(key));
    this.table.style.minWidth = `${shown.reduce((sum, { width }) => sum + width, 0)}px`;
  }

  private summarise(): void {
    const wanted = this.items.length >= (this.options.summaryFrom ?? Number.POSITIVE_INFINITY);
    show(this.summaryRow, wanted);
    if (!wanted) return;
    for (const column of this.columns) {
      const { sum } = this.parts(column);
      const said = column.summary?.(this.items) ?? { text: "", title: "" };
      setText(sum, said.text);
      setTitle(sum, said.title);
    }
  }

  private parts(column: Column<T>): Parts {
    const parts = this.partsOf.get(column.key);
    if (parts === undefined) throw new Error(`no column ${column.key}`);
    return parts;
  }

  private makeRow(): TableRow<T> {
    const row = new TableRow(this.options, (item) => this.options.key(item) === this.found);
    row.showColumns(this.hidden);
    return row;
  }
}

/** The nodes of a row and, where there is one, of its note. */
class TableRow<T> {
  readonly node = h("tbody");
  private readonly cells: { key: string; cell: Cell<T> }[];
  private readonly main = h("tr");
  private readonly noteCell: HTMLTableCellElement;
  private readonly noteText = h("div", { class: "rn-row-note" });
  private readonly noteRow: HTMLTableRowElement;
  private item: T | null = null;

  constructor(
    private readonly options: TableOptions<T>,
    private readonly isFound: (item: T) => boolean,
  ) {
    this.cells = options.columns.map((column) => {
      const cell = column.cell();
      cell.node.className = classOf(column);
      return { key: column.key, cell };
    });
    this.main.append(...this.cells.map(({ cell }) => cell.node));
    this.noteCell = h("td", {}, this.noteText);
    this.noteRow = h("tr", { class: "rn-note-row" }, this.noteCell);
    this.noteRow.hidden = true;
    this.node.append(this.main, this.noteRow);
    const { onRow, onPoint } = options;
    if (onPoint !== undefined) {
      this.node.addEventListener("pointerenter", () => onPoint(this.item));
      this.node.addEventListener("pointerleave", () => onPoint(null));
    }
    if (onRow !== undefined) {
      this.node.addEventListener("click", () => {
        // Marking text to copy it ends in a click too.
        const marking = getSelection()?.type === "Range";
        if (this.item !== null && !marking) onRow(this.item);
      });
    }
  }

  set(item: T, index: number): void {
    this.item = item;
    for (const { cell } of this.cells) cell.set(item);
    const note = this.options.note?.(item) ?? null;
    show(this.noteRow, note !== null);
    setText(this.noteText, note ?? "");
    setTitle(this.noteText, note ?? "");
    const own = this.options.rowClass?.(item) ?? "";
    setAttr(this.node, "class", `rn-row ${own} ${this.isFound(item) ? "rn-found" : ""}`);
    setAttr(this.main, "aria-rowindex", String(index + 1));
  }

  showColumns(hidden: ReadonlySet<string>): void {
    for (const { key, cell } of this.cells) show(cell.node, !hidden.has(key));
    // No further than the columns that show, or the table would make room for the others.
    this.noteCell.colSpan = this.cells.length - hidden.size;
  }
}

/** A cell of plain text. */
export function textCell<T>(
  text: (item: T) => string,
  title: (item: T) => string = () => "",
): () => Cell<T> {
  return () => {
    const node = h("td");
    return {
      node,
      set(item) {
        setText(node, text(item));
        setTitle(node, title(item));
      },
    };
  };
}

function classOf<T>(column: Column<T>): string {
  return `rn-c-${column.key}${column.numeric === true ? " rn-num" : ""}`;
}

function compare(a: number | string | null, b: number | string | null, sign: number): number {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
  if (typeof a === "number" && typeof b === "number") return (a - b) * sign;
  return ORDER.compare(String(a), String(b)) * sign;
}

const ORDER = new Intl.Collator("en", { numeric: true });
