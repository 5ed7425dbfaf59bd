// Addresses of the pages: what stands behind the # in the browser's bar.

const encoded = (text) => encodeURIComponent(String(text).toWellFormed?.() ?? String(text));

export function address(parts, query = {}, token = null) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const words = given.map(([name, value]) => `${name}=${encoded(value)}`);
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

export const toRun = (run) => address(["run", run]);
export const toStep = (run, step) => address(["run", run, "step", step]);
export const toGroup = (run, step, group, offset = null) => address(["run", run, "step", step, "group", group], { offset });
export const toEpisode = (run, step, uid, token = null) => address(["run", run, "step", step, "episode", uid], {}, token);
export const toAttempts = (run, query = {}) => address(["run", run, "attempts"], query);
export const toCompare = (runs) => address(["compare"], { runs: runs.join(",") });
