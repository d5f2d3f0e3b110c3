// Shows live views of the kernel's widgets in the places that a record's static HTML leaves for
// them. The record itself stays plain HTML: without a kernel these places are as they were saved.
export default {
  initialize({ model }) {
    const prefix = `raynb-${model.get("token")}-`;
    const mounted = new Map(); // place -> its views' holder
    let ids = null; // name of a place -> id of the widget that goes there
    let asked = false;
    let timer = null;

    const attach = (view, holder) => {
      const shown = view.luminoWidget ?? view.pWidget;
      // Lumino's own attach tells the widget that it is on the page.
      if (typeof shown?.constructor?.attach === "function") shown.constructor.attach(shown, holder);
      else holder.append(view.el);
    };

    const mount = async (place, id) => {
      const holder = document.createElement("div");
      mounted.set(place, holder);
      try {
        const manager = model.widget_manager;
        const view = await manager.create_view(await manager.get_model(id));
        const before = [...place.children];
        place.append(holder);
        attach(view, holder);
        for (const child of before) {
          child.dataset.raynbDisplay = child.style.display;
          child.style.display = "none";
        }
      } catch (error) {
        console.error("raynb: controls can't be shown", error);
        holder.remove();
      }
    };

    const look = () => {
      timer = null;
      for (const place of document.querySelectorAll(`[class^="${prefix}"]`)) {
        if (ids === null) {
          if (!asked) model.send({ kind: "hello" });
          asked = true;
          return;
        }
        const id = ids[place.className.slice(prefix.length)];
        if (id && !mounted.has(place)) mount(place, id);
      }
    };

    const soon = () => (timer ??= setTimeout(look, 150));
    const observer = new MutationObserver(soon);
    observer.observe(document.body, { childList: true, subtree: true });
    model.on("msg:custom", (message) => {
      if (message?.kind === "places") {
        ids = message.ids;
        look();
      }
    });
    look();

    return () => {
      observer.disconnect();
      clearTimeout(timer);
      for (const [place, holder] of mounted) {
        holder.remove();
        for (const child of place.children) {
          if ("raynbDisplay" in child.dataset) child.style.display = child.dataset.raynbDisplay;
        }
      }
    };
  },
};
