"""`python -m freshq_pipeline`: the freshq-pipeline command."""

from freshq_pipeline.cli import app

if __name__ == "__main__":
    app()
