"""The entry point of spark-submit and of EMR Serverless: the same command."""

from freshq_pipeline.cli import app

if __name__ == "__main__":
    app()
