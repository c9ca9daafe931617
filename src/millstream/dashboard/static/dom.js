// Elements: make them, and change them only where they differ.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element with attributes, listeners (`onclick`) and children. */
export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** An SVG element. */
export function s(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else attribute(element, name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Set an attribute if it differs; null, undefined and false remove it. */
export function attribute(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/** Set the text of an element if it differs, in the text node that it has. */
export function text(element, value) {
  const wanted = String(value);
  const only = element.firstChild;
  if (only === null) element.append(wanted);
  else if (only === element.lastChild && only.nodeType === Node.TEXT_NODE) {
    if (only.data !== wanted) only.data = wanted;
  } else element.replaceChildren(wanted);
}

/**
 * Make the children of an element those of `items`, in order: an element that was made for a key
 * stays, and only elements of new keys are made.
 */
export function keyed(parent, items, keyOf, make, update) {
  const known = (parent.keyedChildren ??= new Map());
  const wanted = new Set(items.map(keyOf));
  for (const [key, element] of known) {
    if (wanted.has(key)) continue;
    element.remove();
    known.delete(key);
  }
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let element = known.get(key);
    if (element === undefined) {
      element = make(item);
      known.set(key, element);
    }
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
    update(element, item);
  }
}

/** Whether the reader asked for less motion. */
export const isStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Call a function at most once per time, and once more after the last call. */
export function calmly(milliseconds, call) {
  let timer = null;
  let again = false;
  return function run() {
    if (timer !== null) {
      again = true;
      return;
    }
    call();
    timer = setTimeout(() => {
      timer = null;
      if (again) {
        again = false;
        run();
      }
    }, milliseconds);
  };
}
