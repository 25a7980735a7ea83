// Results of runs as a table for readers: which columns, and each value in words.

/** Meanings of a run's facts, by their names. */
export const FACTS = {
  world: "real: ranks are processes and time is measured; paced: processes follow a platform's clock; simulated: ranks are tasks of one process",
  platform: "machine or platform whose times are shown; for real ranks also device and carrier of messages",
  "all-reduce": "what allreduce=auto chose: the quickest for each bucket's size, the ranks and the measured link",
  factors: "layers that send activations and errors instead of a gradient, because these are shorter",
  clock: "clock of the seconds in the figures: wall, or the platform's (logical: per process; virtual: simulated)",
  slip: "largest lag of the wall clock behind the clock of the figures; none if they are the same",
  batches: "whether the runs shown saw the same batches, so that their curves are comparable",
};

/** Results in the order in which a table has room for them, and their meanings. */
const RESULTS = {
  world: "the world of the ranks",
  "samples/s": "throughput of all workers together",
  accuracy: "accuracy on held-out samples at the end",
  "to goal (s)": "seconds until a test on held-out samples first reached the goal",
  "staleness mean": "mean number of updates between a worker's read and its push",
  "waiting (s)": "mean waiting time of a worker",
  "final loss": "training loss of the last global step",
  "MB sent": "sent by all ranks together",
};
const ALWAYS = ["samples/s", "accuracy", "final loss"];
const MOST = 6; // columns

/** Columns for the results of some runs: speed and learning first, then other results in which runs differ. */
export function columnsOf(results, goal) {
  const isShown = (name) => {
    const values = new Set(results.map((own) => own[name]));
    const isKnown = [...values].some((value) => value != null && (ALWAYS.includes(name) || value !== 0));
    return isKnown && (ALWAYS.includes(name) || values.size > 1);
  };
  const shown = (name) => (name === "to goal (s)" ? `to ${Math.round(100 * goal)}% (s)` : name);
  return Object.keys(RESULTS).filter(isShown).slice(0, MOST).map((name) => ({ name, shown: shown(name), means: RESULTS[name] }));
}

/** A result as a cell of the table. */
export function inWords(name, value) {
  if (value == null) return name === "to goal (s)" ? "not reached" : "–";
  if (typeof value === "string") return value;
  return name === "accuracy" ? `${(100 * value).toFixed(1)}%` : quantity(value);
}

/** A number with three significant digits. */
export function quantity(value) {
  const rounded = Number(value.toPrecision(3));
  return Math.abs(value) >= 1000 ? rounded.toLocaleString("en") : String(rounded);
}
