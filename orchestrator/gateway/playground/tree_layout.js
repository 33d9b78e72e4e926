// Lays out a draft tree: one column per depth, one row per leaf, the accepted path on top.

export const ROOT = -1;

// Returns the nodes of a round with `column` and `row`. The first is the root, the last committed
// token; the bonus token, if there is one, is a child of the last accepted node.
export function laidOut(round) {
  const root = { text: round.before, kind: "root", source: "target", children: [], column: 0 };
  const accepted = new Set(round.accepted);
  const drafted = round.draft.map((node, index) => ({
    ...node, kind: accepted.has(index) ? "accepted" : "rejected", children: [],
  }));
  const at = (index) => (index === ROOT ? root : drafted[index]);
  for (const node of drafted) place(node, at(node.parent));
  const nodes = [root, ...drafted];
  const bonus = round.tokens[round.accepted.length];
  if (bonus) {
    const node = { ...bonus, kind: "bonus", children: [] };
    place(node, at(round.accepted.at(-1) ?? ROOT));
    nodes.push(node);
  }
  assignRows(root);
  return nodes;
}

function place(node, above) {
  node.above = above;
  node.column = above.column + 1;
  above.children.push(node);
}

const WORTH = { accepted: 2, bonus: 2, rejected: 0 };

// Depth first; the first child is in its parent's row, so that chains are straight.
function assignRows(root) {
  let free = 0;
  const waiting = [root];
  root.row = 0;
  while (waiting.length) {
    const node = waiting.pop();
    node.row = node.above?.children[0] === node ? node.above.row : free;
    free = Math.max(free, node.row + 1);
    node.children.sort((one, other) => rank(other) - rank(one));
    waiting.push(...node.children.toReversed());
  }
}

function rank(node) {
  return WORTH[node.kind] + (node.estimate ?? 0);
}
