// For elements with a scroll bar: they can be reached by keys while there is something to scroll, and are no stop on the way otherwise.

export function scrollable(node: HTMLElement): () => void {
  const look = (): void => {
    if (node.scrollHeight > node.clientHeight + 1 || node.scrollWidth > node.clientWidth + 1) node.tabIndex = 0;
    else node.removeAttribute("tabindex");
  };
  const sizes = new ResizeObserver(look);
  sizes.observe(node);
  const content = new MutationObserver(look);
  content.observe(node, { childList: true, characterData: true, subtree: true });
  return () => {
    sizes.disconnect();
    content.disconnect();
  };
}
