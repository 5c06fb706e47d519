// Questions of the page itself: whether to do what cannot be taken back, and for one line of text. One at a time, in a dialog of the page.

export interface Question {
  head: string;
  /** What happens then. */
  text: string;
  /** The word on the button. */
  act: string;
  danger: boolean;
  /** What is asked for, if a line of text is, and what stands there already. */
  label: string;
  value: string;
}

class Questions {
  current = $state.raw<Question | null>(null);
  #answer: ((said: string | null) => void) | null = null;

  /** Returns whether the user wants it. */
  async confirm(head: string, text: string, act: string, { danger = true } = {}): Promise<boolean> {
    return (await this.#ask({ head, text, act, danger, label: "", value: "" })) !== null;
  }

  /** Returns a line of text, or null if the user wants none of it. */
  ask(head: string, label: string, act: string, value = ""): Promise<string | null> {
    return this.#ask({ head, text: "", act, danger: false, label, value });
  }

  answer(said: string | null): void {
    const answer = this.#answer;
    this.#answer = null;
    this.current = null;
    answer?.(said);
  }

  #ask(question: Question): Promise<string | null> {
    this.answer(null);
    this.current = question;
    return new Promise((resolve) => { this.#answer = resolve; });
  }
}

export const questions = new Questions();
