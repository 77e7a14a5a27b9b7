"""The paper's six figures again: what each shows, the trainings it needs, and the paper's own curves to lay beside."""
