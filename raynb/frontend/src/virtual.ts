/**
 * A list that draws only what is in view: thousands of items, a few dozen nodes.
 *
 * The nodes sit between two spacers that stand for all the others. Heights are
 * estimates; with `measure` each drawn item's true height replaces its own.
 */

/** Pixels drawn past both ends of the view, so that scrolling shows no holes. */
const OVERSCAN = 160;
/** The view's height where there is no layout yet (a hidden tab, a test). */
const UNSEEN_HEIGHT = 480;

/** The nodes of one drawn item; another item may take them over later. */
export interface VirtualRow<T> {
  readonly node: HTMLElement;
  set(item: T, index: number): void;
}

export interface Spacer {
  readonly node: HTMLElement;
  readonly sized: HTMLElement;
}

export interface VirtualOptions<T, R extends VirtualRow<T>> {
  scroller: HTMLElement;
  /** Where the items go, after what it holds already. */
  body: HTMLElement;
  /** A new spacer and the node of it that has the height. */
  spacer(): Spacer;
  make(): R;
  /** Equal keys are the same item: it keeps its nodes, and so the focus. */
  key(item: T): unknown;
  height(item: T): number;
  measure?: boolean;
}

export class VirtualList<T, R extends VirtualRow<T> = VirtualRow<T>> {
  private items: readonly T[] = [];
  private offsets = new Float64Array(1);
  private measured = new Map<unknown, number>();
  private rows = new Map<unknown, R>();
  private readonly before: Spacer;
  private readonly after: Spacer;
  private readonly onScroll = (): void => this.draw(false);

  constructor(private readonly options: VirtualOptions<T, R>) {
    this.before = options.spacer();
    this.after = options.spacer();
    options.body.append(this.before.node, this.after.node);
    options.scroller.addEventListener("scroll", this.onScroll, { passive: true });
  }

  get length(): number {
    return this.items.length;
  }

  /** Every row that is drawn now. */
  each(act: (row: R) => void): void {
    this.rows.forEach(act);
  }

  /** Shows other items; with `hold` what is at the top of the view stays there. */
  set(items: readonly T[], hold = false): void {
    const anchor = hold ? this.anchor() : null;
    this.items = items;
    if (this.measured.size > 2 * items.length + 200) this.prune();
    this.layOut();
    // Before scrolling, or the old height bounds how far that can go.
    this.sizeSpacers(0, 0);
    if (anchor !== null) this.restore(anchor);
    this.draw(true);
  }

  /** Forgets measured heights: of all items, or of one that changed. */
  forget(item?: T): void {
    if (item === undefined) this.measured.clear();
    else this.measured.delete(this.options.key(item));
  }

  /** Brings an item into the middle of the view, unless it is well inside. */
  reveal(index: number): void {
    const { scroller } = this.options;
    const [top, bottom] = [this.offsets[index] ?? 0, this.offsets[index + 1] ?? 0];
    const inside = top >= scroller.scrollTop && bottom <= scroller.scrollTop + this.viewHeight();
    if (!inside) scroller.scrollTop = Math.max(0, top - this.viewHeight() / 2);
    this.draw(false);
  }

  toEnd(): void {
    const { scroller } = this.options;
    // Twice: what is drawn at the end may be taller than estimated.
    for (let i = 0; i < 2; i++) {
      scroller.scrollTop = scroller.scrollHeight;
      this.draw(false);
    }
  }

  destroy(): void {
    this.options.scroller.removeEventListener("scroll", this.onScroll);
  }

  /** Draws what is in view; `all` also brings nodes that stay up to date. */
  draw(all: boolean): void {
    const { scroller, body, measure } = this.options;
    const top = scroller.scrollTop;
    const from = this.indexAt(top - OVERSCAN);
    const to = Math.min(this.items.length, this.indexAt(top + this.viewHeight() + OVERSCAN) + 1);
    const wanted = new Map<unknown, number>();
    for (let i = from; i < to; i++) wanted.set(this.options.key(this.items[i] as T), i);

    const next = new Map<unknown, R>();
    const spare = [...this.rows].filter(([key]) => !wanted.has(key)).map(([, row]) => row);
    let place: Element | null = this.before.node.nextElementSibling;
    for (const [key, index] of wanted) {
      let row = this.rows.get(key);
      const known = row !== undefined;
      row ??= spare.pop() ?? this.options.make();
      if (!known || all) row.set(this.items[index] as T, index);
      next.set(key, row);
      if (place === row.node) place = place.nextElementSibling;
      else body.insertBefore(row.node, place);
    }
    for (const row of spare) row.node.remove();
    this.rows = next;
    this.sizeSpacers(from, to);
    if (measure === true && this.takeHeights()) {
      const anchor = this.anchor();
      this.layOut();
      this.sizeSpacers(from, to);
      if (anchor !== null) this.restore(anchor);
    }
  }

  private viewHeight(): number {
    return this.options.scroller.clientHeight || UNSEEN_HEIGHT;
  }

  private heightOf(item: T): number {
    return this.measured.get(this.options.key(item)) ?? this.options.height(item);
  }

  private layOut(): void {
    const { length } = this.items;
    if (this.offsets.length !== length + 1) this.offsets = new Float64Array(length + 1);
    let at = 0;
    for (let i = 0; i < length; i++) {
      at += this.heightOf(this.items[i] as T);
      this.offsets[i + 1] = at;
    }
  }

  /** Drops the heights of items that are gone. */
  private prune(): void {
    const keys = new Set(this.items.map((item) => this.options.key(item)));
    for (const key of this.measured.keys()) if (!keys.has(key)) this.measured.delete(key);
  }

  private sizeSpacers(from: number, to: number): void {
    const total = this.offsets[this.items.length] ?? 0;
    const above = this.offsets[from] ?? 0;
    setHeight(this.before.sized, above);
    setHeight(this.after.sized, total - (this.offsets[to] ?? total));
  }

  private takeHeights(): boolean {
    let differs = false;
    for (const [key, row] of this.rows) {
      const height = row.node.offsetHeight;
      if (height === 0 || this.measured.get(key) === height) continue;
      this.measured.set(key, height);
      differs = true;
    }
    return differs;
  }

  /** The item at the top of the view and how far it is scrolled out. */
  private anchor(): { key: unknown; index: number; by: number } | null {
    const top = this.options.scroller.scrollTop;
    const index = this.indexAt(top);
    const item = this.items[index];
    if (item === undefined) return null;
    return { key: this.options.key(item), index, by: top - (this.offsets[index] ?? 0) };
  }

  private restore({ key, index, by }: { key: unknown; index: number; by: number }): void {
    // Items leave at the front, so it is where it was or further up.
    for (let i = Math.min(index, this.items.length - 1); i >= 0; i--) {
      if (this.options.key(this.items[i] as T) !== key) continue;
      const top = (this.offsets[i] ?? 0) + by;
      if (Math.abs(this.options.scroller.scrollTop - top) >= 1) this.options.scroller.scrollTop = top;
      return;
    }
  }

  /** The item that covers this height: a binary search. */
  private indexAt(y: number): number {
    let [low, high] = [0, this.items.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.offsets[middle + 1] ?? 0) <= y) low = middle + 1;
      else high = middle;
    }
    return Math.min(low, Math.max(0, this.items.length - 1));
  }
}

function setHeight(node: HTMLElement, height: number): void {
  const style = `${Math.max(0, height)}px`;
  if (node.style.height !== style) node.style.height = style;
}
