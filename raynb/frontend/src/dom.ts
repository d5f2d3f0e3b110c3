/** A few helpers around the DOM. Text goes in as text, never as markup. */

interface Props {
  class?: string;
  text?: string;
  title?: string;
  attrs?: Record<string, string>;
}

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  if (props.class !== undefined) node.className = props.class;
  if (props.text !== undefined) node.textContent = props.text;
  if (props.title !== undefined) node.title = props.title;
  for (const [name, value] of Object.entries(props.attrs ?? {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Sets a text where it differs: screen readers and layout hear of changes only. */
export function setText(node: Element, text: string): void {
  if (node.textContent !== text) node.textContent = text;
}

export function setTitle(node: HTMLElement, title: string): void {
  if (node.title !== title) node.title = title;
}

export function setAttr(node: Element, name: string, value: string): void {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

export function show(node: HTMLElement, visible: boolean): void {
  if (node.hidden === visible) node.hidden = !visible;
}

export interface Option {
  value: string;
  label: string;
}

/** Brings a select's options in line, keeping the choice where it still exists. */
export function setOptions(select: HTMLSelectElement, options: Option[], chosen: string): void {
  const same =
    select.options.length === options.length &&
    options.every((option, i) => {
      const node = select.options[i];
      return node?.value === option.value && node.textContent === option.label;
    });
  if (!same) {
    select.replaceChildren(
      ...options.map(({ value, label }) => h("option", { text: label, attrs: { value } })),
    );
  }
  if (select.value !== chosen) select.value = chosen;
}

let ids = 0;

/** An id that is unique on the page, to tie labels to controls. */
export function uniqueId(stem: string): string {
  ids += 1;
  return `raynb-${stem}-${ids}`;
}
