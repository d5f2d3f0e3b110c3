/** Growing tables of buckets, one column a row of the wire's buffers. */
import { BAND_ROWS, ROWS, type BandPart, type BandRow, type Row } from "./wire";

/**
 * A table can start past its first bucket (`base`): a view that opened while
 * the kernel was too busy for a snapshot shows what came since, and asks again.
 */
class Table<R extends string> {
  base = 0;
  length = 0;
  private columns: Map<R, Float64Array>;

  constructor(
    private readonly rows: readonly R[],
    readonly metric: string,
    readonly attempt: number,
  ) {
    this.columns = this.columnsOf(0);
  }

  column(row: R): Float64Array {
    return (this.columns.get(row) ?? NOTHING).subarray(0, this.length);
  }

  /** The newest value of a row, or null where there is none yet. */
  newest(row: R): number | null {
    return this.length === 0 ? null : (this.columns.get(row)?.[this.length - 1] ?? null);
  }

  /** Truncates to `part.start`, appends; false when buckets in between are missing. */
  apply(part: BandPart): boolean {
    const joins = part.start >= this.base && part.start <= this.base + this.length;
    if (!joins) {
      this.base = part.start;
      this.length = 0;
    }
    const keep = part.start - this.base;
    this.reserve(keep + part.n);
    this.rows.forEach((row, r) => {
      this.columns.get(row)?.set(part.values.subarray(r * part.n, (r + 1) * part.n), keep);
    });
    this.length = keep + part.n;
    return joins || part.start === 0;
  }

  private reserve(count: number): void {
    const [first] = this.columns.values();
    const capacity = first?.length ?? 0;
    if (count <= capacity) return;
    const grown = this.columnsOf(Math.max(count, capacity * 2, 64));
    for (const [row, column] of grown) column.set(this.column(row));
    this.columns = grown;
  }

  private columnsOf(size: number): Map<R, Float64Array> {
    return new Map(this.rows.map((row) => [row, new Float64Array(size)]));
  }
}

const NOTHING = new Float64Array(0);

/** One metric of one rank in one attempt. */
export class Series extends Table<Row> {
  constructor(
    metric: string,
    readonly rank: number,
    attempt: number,
  ) {
    super(ROWS, metric, attempt);
  }
}

/** One metric across all ranks in one attempt. */
export class Band extends Table<BandRow> {
  constructor(metric: string, attempt: number) {
    super(BAND_ROWS, metric, attempt);
  }
}
