import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
// @ts-expect-error plain JavaScript, which the wheel carries as it is
import mount from "../../results/mount.js";

/** A stand-in for the model that anywidget hands to initialize(). */
function fakeModel() {
  let tell: (message: unknown) => void = () => {};
  const attached: [unknown, unknown][] = [];
  class View {
    constructor(public node: HTMLElement) {}
    static attach(view: View, host: HTMLElement) {
      if (!host.isConnected) throw new Error("host is not on the page");
      attached.push([view, host]);
      host.append(view.node);
    }
  }
  return {
    attached,
    sent: [] as unknown[],
    tell: (message: unknown) => tell(message),
    get: () => "ab12",
    on: (_: string, listener: (message: unknown) => void) => (tell = listener),
    send(message: unknown) {
      this.sent.push(message);
    },
    widget_manager: {
      get_model: async (id: string) => {
        if (id === "gone") throw new Error("no such model");
        return id;
      },
      create_view: async (id: string) => {
        const node = document.createElement("button");
        node.textContent = id;
        return { luminoWidget: new View(node), el: node };
      },
    },
  };
}

const RECORD = `<div class="raynb-ab12-curves"><img style="display:block"></div>
  <div class="raynb-ab12-load-0"></div><div class="raynb-ab12-lost"></div>
  <div class="raynb-other-load-0"></div>`;
const IDS = { curves: "chooser", "load-0": "button", lost: "gone" };
const settle = () => vi.advanceTimersByTimeAsync(400);

describe("mount", () => {
  beforeEach(() => {
    vi.useFakeTimers();
    vi.spyOn(console, "error").mockImplementation(() => {});
  });
  afterEach(() => {
    document.body.replaceChildren();
    vi.useRealTimers();
    vi.restoreAllMocks();
  });

  it("asks once there is a place, once, and fills the places that are its own", async () => {
    const model = fakeModel();
    mount.initialize({ model });
    await settle();
    expect(model.sent).toEqual([]);
    document.body.innerHTML = RECORD;
    await settle();
    document.body.append(document.createElement("p"));
    await settle();
    expect(model.sent).toEqual([{ kind: "hello" }]);
    model.tell({ kind: "places", ids: IDS });
    await settle();
    expect(document.querySelector(".raynb-ab12-load-0")!.textContent).toBe("button");
    expect(document.querySelector<HTMLElement>("img")!.style.display).toBe("none");
    expect(document.querySelector(".raynb-other-load-0")!.textContent).toBe("");
    expect(document.querySelector(".raynb-ab12-lost")!.innerHTML).toBe("");
    expect(model.attached.length).toBe(2);
  });

  it("fills a place that comes later, such as the same record in another cell", async () => {
    const model = fakeModel();
    mount.initialize({ model });
    document.body.innerHTML = RECORD;
    await settle();
    model.tell({ kind: "places", ids: IDS });
    await settle();
    const more = document.createElement("div");
    more.innerHTML = RECORD;
    document.body.append(more);
    await settle();
    expect(model.attached.length).toBe(4);
  });

  it("gives the static record back when the kernel is gone", async () => {
    const model = fakeModel();
    const end = mount.initialize({ model });
    document.body.innerHTML = RECORD;
    await settle();
    model.tell({ kind: "places", ids: IDS });
    await settle();
    end();
    expect(document.querySelectorAll("button").length).toBe(0);
    expect(document.querySelector<HTMLElement>("img")!.style.display).toBe("block");
    document.body.innerHTML = RECORD;
    await settle();
    expect(document.querySelectorAll("button").length).toBe(0);
  });
});
