/** A button that asks back in its own place before it acts. */
import { h, setAttr, setText, show } from "./dom";
import { icon, type IconName } from "./icons";

export interface AskLook {
  icon: IconName;
  /** Another name for who can't see where the button is. */
  label: string;
  words: string;
  question: string;
  yes: string;
  enabled: boolean;
}

export class Ask {
  readonly button = h("button", { class: "rn-stop", attrs: { type: "button" } });
  private readonly question = h("span", { class: "rn-ask-question" });
  private readonly yes = h("button", { class: "rn-ask-yes", attrs: { type: "button" } });
  private readonly no = h("button", { text: "no", attrs: { type: "button" } });
  private readonly asked = h("span", { class: "rn-asked", attrs: { role: "group" } }, this.question, this.yes, this.no);
  readonly node = h("span", { class: "rn-ask" }, this.button, this.asked);
  private words = "";

  constructor(onYes: () => void) {
    this.toggle(false);
    this.button.addEventListener("click", () => {
      this.toggle(true);
      this.yes.focus();
    });
    this.yes.addEventListener("click", () => {
      this.toggle(false);
      onYes();
    });
    this.no.addEventListener("click", () => {
      this.toggle(false);
      this.button.focus();
    });
    this.asked.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      this.toggle(false);
      this.button.focus();
      event.stopPropagation();
    });
    // A row under it is not meant.
    this.node.addEventListener("click", (event) => event.stopPropagation());
  }

  set({ icon: name, label, words, question, yes, enabled }: AskLook): void {
    if (words !== this.words || this.button.firstChild === null) {
      this.words = words;
      this.button.replaceChildren(icon(name), words);
    }
    setAttr(this.button, "aria-label", label);
    if (this.button.disabled === enabled) this.button.disabled = !enabled;
    setText(this.question, question);
    setText(this.yes, yes);
    if (!enabled) this.toggle(false);
  }

  cancel(): void {
    this.toggle(false);
  }

  private toggle(asking: boolean): void {
    show(this.button, !asking);
    show(this.asked, asking);
  }
}
