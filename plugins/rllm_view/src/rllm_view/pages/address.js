// Addresses of the pages: the part after the # in the browser's bar.

const encoded = (text) => encodeURIComponent(String(text).toWellFormed?.() ?? String(text));
// Slashes and commas are not encoded in a query, so that names of metrics stay readable.
const readable = (text) => encoded(text).replace(/%2[FC]/g, decodeURIComponent);

export function address(parts, query = {}, token = null) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const words = given.map(([name, value]) => `${name}=${readable(value)}`);
  return `#/${parts.map(encoded).join("/")}${words.length ? `?${words.join("&")}` : ""}${token === null ? "" : `#t${token}`}`;
}

const decoded = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};

// {parts: ["run", id, …], query: {…}, token: 137 or null}
export function parsed(hash) {
  const [, rest, token] = /^#?\/?(.*?)(?:#t(\d+))?$/s.exec(hash);
  const [path, query = ""] = rest.split("?");
  return {
    parts: path.split("/").filter(Boolean).map(decoded),
    query: Object.fromEntries(query.split("&").filter(Boolean).map((word) => word.split("=").map(decoded))),
    token: token === undefined ? null : Number(token),
  };
}

// Stores the choices of a page in its address, so that the address can be shared.
export function keep(changed) {
  const { parts, query } = parsed(location.hash);
  history.replaceState(null, "", address(parts, { ...query, ...changed }));
}

// Names with commas between them.
export const joined = (names) => names.map((name) => name.replace(/[%,]/g, encodeURIComponent)).join(",");
export const split = (text) => (text ?? "").split(",").filter(Boolean).map(decoded);

export const toRun = (run) => address(["run", run]);
export const toStep = (run, step) => address(["run", run, "step", step]);
export const toGroup = (run, step, group, offset = null) => address(["run", run, "step", step, "group", group], { offset });
export const toEpisode = (run, step, uid, token = null) => address(["run", run, "step", step, "episode", uid], {}, token);
export const toRollouts = (run, query = {}) => address(["run", run, "rollouts"], query);
export const toExamples = (run, query = {}) => address(["run", run, "examples"], query);
export const toCompare = (runs) => address(["compare"], { runs: runs.join(",") });
