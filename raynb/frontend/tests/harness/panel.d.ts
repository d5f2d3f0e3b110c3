declare module "*/static/panel.js" {
  const panel: {
    render(props: { model: unknown; el: HTMLElement }): (() => void) | Promise<() => void>;
  };
  export default panel;
}
