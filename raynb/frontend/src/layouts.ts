/** What a run shows and what a search shows: their tabs and, in the order of the page, their views. */
import type { Context, View } from "./context";
import * as banner from "./panels/banner";
import * as charts from "./panels/charts";
import * as curves from "./panels/curves";
import * as data from "./panels/data";
import * as devices from "./panels/devices";
import * as errorPanel from "./panels/error";
import * as events from "./panels/events";
import * as header from "./panels/header";
import * as hints from "./panels/hints";
import * as logs from "./panels/logs";
import * as parallel from "./panels/parallel";
import * as problems from "./panels/problems";
import * as scatter from "./panels/scatter";
import * as searchHeader from "./panels/search_header";
import * as trialBar from "./panels/trial_bar";
import * as trials from "./panels/trials";
import * as workers from "./panels/workers";
import type { TabName } from "./tabs";

export interface Layout {
  label: string;
  tabs: readonly TabName[];
  views: readonly {
    name: string;
    view: { mount(root: HTMLElement, ctx: Context): View };
    /** Drawn less often than once a frame. */
    slow: boolean;
    /** Drawn while this tab is open; null: always, above or below the list of tabs. */
    tab: TabName | null;
    below?: true;
  }[];
}

export const RUN_LAYOUT: Layout = {
  label: "Training run",
  tabs: ["overview", "workers", "data", "logs", "hints"],
  views: [
    { name: "header", view: header, slow: false, tab: null },
    { name: "error", view: errorPanel, slow: false, tab: null },
    { name: "problems", view: problems, slow: false, tab: null },
    { name: "banner", view: banner, slow: false, tab: "overview" },
    { name: "charts", view: charts, slow: true, tab: "overview" },
    { name: "devices", view: devices, slow: true, tab: "overview" },
    { name: "events", view: events, slow: false, tab: "overview" },
    { name: "workers", view: workers, slow: true, tab: "workers" },
    { name: "data", view: data, slow: true, tab: "data" },
    { name: "logs", view: logs, slow: false, tab: "logs" },
    { name: "hints", view: hints, slow: false, tab: "hints" },
  ],
};

export const SEARCH_LAYOUT: Layout = {
  label: "Search",
  tabs: ["overview", "parameters", "logs"],
  views: [
    { name: "search", view: searchHeader, slow: true, tab: null },
    { name: "error", view: errorPanel, slow: false, tab: null },
    { name: "problems", view: problems, slow: false, tab: null },
    { name: "trial-bar", view: trialBar, slow: true, tab: null, below: true },
    { name: "curves", view: curves, slow: true, tab: "overview" },
    { name: "trials", view: trials, slow: true, tab: "overview" },
    { name: "events", view: events, slow: false, tab: "overview" },
    { name: "parallel", view: parallel, slow: true, tab: "parameters" },
    { name: "scatter", view: scatter, slow: true, tab: "parameters" },
    { name: "logs", view: logs, slow: false, tab: "logs" },
  ],
};
