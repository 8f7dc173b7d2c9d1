// Asks for a token where the API wants one.
import { keepToken, readToken } from "./api.js";
import { fill, h } from "./dom.js";
import { commands } from "./parts.js";

let dialog = null;
let isDeclined = false;

/** Shows the dialog whenever an answer was 401; `then` is called with a new token. */
export function listenForToken(then) {
  addEventListener("fleetbus:token", (event) => isDeclined || ask(event.detail, then));
}

/** The button that shows whether there is a token, and forgets it. */
export function tokenButton(then) {
  const button = h("button", { type: "button", class: "quiet", id: "token" });
  const label = () => fill(button, readToken() ? "Forget token" : "Token");
  button.addEventListener("click", () => {
    if (readToken()) {
      keepToken("");
      then();
    } else ask(null, then);
    label();
  });
  addEventListener("fleetbus:kept", label);
  label();
  return button;
}

function ask(problem, then) {
  if (dialog?.open) return;
  dialog?.remove();
  const input = h("input", {
    type: "password",
    id: "token-input",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
    "aria-describedby": "token-why",
  });
  const form = h(
    "form",
    {},
    h("h2", {}, "The query API asks for a token"),
    problem ? h("p", { id: "token-why" }, problem.message) : h("p", { id: "token-why" }, "It decides what you see."),
    h("label", {}, h("span", {}, "Bearer token"), input),
    h("p", {}, "A ServiceAccount of the hub has one; who logs in by OIDC uses their own."),
    commands("kubectl create token NAME --namespace NAMESPACE --audience fleetbus"),
    h("p", {}, "It stays in this tab until you close it: in no address, no cookie and no log."),
    h(
      "div",
      { class: "buttons" },
      h("button", { type: "submit" }, "Use it"),
      h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"),
    ),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    keepToken(input.value.trim().replace(/^Bearer\s+/i, ""));
    input.value = "";
    dialog.close();
    dispatchEvent(new CustomEvent("fleetbus:kept"));
    then();
  });
  dialog = h("dialog", { "aria-label": "Token" }, form);
  dialog.addEventListener("close", () => {
    isDeclined = !readToken(); // views ask again every few seconds; the button opens it anew
  });
  document.body.append(dialog);
  dialog.showModal();
}
