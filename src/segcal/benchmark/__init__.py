"""The paper's protocol: tasks, splits, pipelines, repeats, and results that can be resumed."""
