// A trajectory in chunks. A chunk is a few pieces of turns that are drawn together.

const SIZE = 256;
const LINE = 26;
const HEADING = 34;
const LETTERS = 90;

// Prompts and responses of turns, each at most `SIZE` tokens long, preferably until the end of a line.
function* piecesOf(account) {
  const { texts } = account;
  for (const [number, turn] of account.rollout.turns.entries()) {
    for (const [kind, start, end] of [["prompt", turn.prompt_start, turn.response_start], ["completion", turn.response_start, turn.end]]) {
      for (let at = start; at < end;) {
        let stop = Math.min(end, at + SIZE);
        for (let back = stop; stop < end && back > stop - 64; back -= 1) {
          if (texts[back - 1].endsWith("\n")) { stop = back; break; }
        }
        yield { number, turn, kind, start: at, end: stop, first: at === start, whole: end - start };
        at = stop;
      }
    }
  }
}

function heightOf(piece, texts) {
  let letters = 0;
  for (let at = piece.start; at < piece.end; at += 1) letters += texts[at].length;
  return (piece.first ? HEADING : 0) + LINE * Math.max(1, Math.ceil(letters / LETTERS));
}

// [{pieces, start, end, height}]; `height` is a guess in pixels.
export function chunksOf(account) {
  const chunks = [];
  for (const piece of piecesOf(account)) {
    const last = chunks[chunks.length - 1];
    const height = heightOf(piece, account.texts);
    if (last && piece.end - last.start <= SIZE) {
      last.pieces.push(piece);
      last.end = piece.end;
      last.height += height;
    } else {
      chunks.push({ pieces: [piece], start: piece.start, end: piece.end, height });
    }
  }
  return chunks;
}
